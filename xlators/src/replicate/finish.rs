//! A future that is never left half done: whoever drops it only stops waiting for it.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use tokio::runtime::Handle;

/// Runs in place as long as somebody waits for it, so that the usual case costs no task; when it is dropped before
/// its end, it goes on in a task of its own.
pub(super) struct Finish<T: Send + 'static> {
    work: Option<BoxFuture<'static, T>>,
    runtime: Handle,
}

impl<T: Send + 'static> Finish<T> {
    pub(super) fn new(runtime: &Handle, work: BoxFuture<'static, T>) -> Self {
        Self { work: Some(work), runtime: runtime.clone() }
    }
}

impl<T: Send + 'static> Future for Finish<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let work = self.work.as_mut().expect("not polled after its end");
        let answer = std::task::ready!(work.as_mut().poll(cx));
        self.work = None;
        Poll::Ready(answer)
    }
}

impl<T: Send + 'static> Drop for Finish<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(work);
        }
    }
}
