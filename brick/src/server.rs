//! Connections: accepted in one place, spread over threads, served over HTTP/2.
//!
//! Each connection stays on one thread with everything that serves it, so that between the socket and the disk nothing
//! wakes another thread: a wake costs tens of microseconds, the work of a small fop less. Threads help clients beside
//! each other, which is where a brick has its parallelism.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use mortar_proto::{CONNECTION_WINDOW_BYTES, HTTP_FRAME_BYTES_MAX, STREAM_WINDOW_BYTES};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::transport::server::TcpConnectInfo;
use tracing::{debug, warn};

use crate::dispatch::Handler;

/// How often the two ends of an idle connection look whether the other is there.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// What HTTP/2 holds of a connection's answers before it asks for no more: two frames of the largest size.
const SEND_BYTES_MAX: usize = 2 << 20;

/// Connections at the same time: two for each client, with room for those that ask for the status.
const CONNECTIONS_MAX: usize = 10_000;

/// How long to wait when no connection can be accepted, such as when there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Enough for the deepest stack of layers, measured at a tenth of it; 2 MiB is the default.
pub(crate) const THREAD_STACK_BYTES: usize = 512 << 10;

/// Threads of one brick that wait for its disk.
const BLOCKING_MAX: usize = 16;

/// Where connections are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// On the runtime that starts the brick.
    Shared,
    /// On this many threads of its own.
    Own(usize),
}

/// What a connection should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serve,
    /// End what is under way.
    Drain,
    /// End now.
    Stop,
}

/// Accepts and serves connections until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    phase: watch::Sender<Phase>,
    /// Dropping them ends the threads.
    _threads: Vec<oneshot::Sender<()>>,
}

impl Server {
    pub(crate) fn start(listener: TcpListener, threads: Threads, handler: Handler) -> io::Result<Self> {
        let (phase, phases) = watch::channel(Phase::Serve);
        let (handles, stops) = match threads {
            Threads::Shared => (vec![Handle::current()], Vec::new()),
            Threads::Own(count) => {
                (0..count.max(1)).map(|_| thread()).collect::<io::Result<Vec<_>>>()?.into_iter().unzip()
            }
        };
        tokio::spawn(accept(listener, handles, handler, phases));
        Ok(Self { phase, _threads: stops })
    }

    /// Wait until the connections have ended, for `patience` at most.
    pub(crate) async fn drain(self, patience: Duration) {
        self.phase.send_replace(Phase::Drain);
        if tokio::time::timeout(patience, self.phase.closed()).await.is_err() {
            debug!("connections were still open when the brick stopped");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.phase.send_replace(Phase::Stop);
    }
}

/// A thread that serves connections, and what ends it.
fn thread() -> io::Result<(Handle, oneshot::Sender<()>)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_MAX)
        .thread_stack_size(THREAD_STACK_BYTES)
        .build()?;
    let handle = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    thread::Builder::new().name("brick".to_owned()).stack_size(THREAD_STACK_BYTES).spawn(move || {
        // An error says that the sender was dropped, which is the sign to end.
        let _ = runtime.block_on(stopped);
        runtime.shutdown_background();
    })?;
    Ok((handle, stop))
}

async fn accept(listener: TcpListener, threads: Vec<Handle>, handler: Handler, mut phases: watch::Receiver<Phase>) {
    let mut next = threads.iter().cycle();
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = phases.wait_for(|phase| *phase != Phase::Serve) => return,
        };
        let thread = next.next().expect("a cycle has no end");
        let moved = accepted.and_then(|(stream, peer)| {
            stream.set_nodelay(true)?;
            Ok((stream.into_std()?, peer))
        });
        match (moved, Arc::clone(&room).try_acquire_owned()) {
            (Ok((stream, peer)), Ok(room)) => {
                let (handler, phases) = (handler.clone(), phases.clone());
                thread.spawn(async move {
                    if let Err(error) = serve(stream, peer, handler, phases).await {
                        debug!(%peer, %error, "a connection ended");
                    }
                    drop(room);
                });
            }
            (Ok((_, peer)), Err(_)) => warn!(%peer, "refused a connection: there are too many"),
            (Err(error), _) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

async fn serve(
    stream: std::net::TcpStream,
    peer: SocketAddr,
    handler: Handler,
    mut phases: watch::Receiver<Phase>,
) -> Result<(), AnyError> {
    let stream = TokioIo::new(TcpStream::from_std(stream)?);
    let service = service_fn(move |request: http::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(TcpConnectInfo { local_addr: None, remote_addr: Some(peer) });
        handler(request)
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(HTTP_FRAME_BYTES_MAX)
        .max_send_buf_size(SEND_BYTES_MAX)
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .serve_connection(stream, service);
    let mut connection = std::pin::pin!(connection);
    loop {
        tokio::select! {
            ended = &mut connection => return Ok(ended?),
            changed = phases.changed() => {
                let phase = *phases.borrow_and_update();
                if changed.is_err() || phase == Phase::Stop {
                    return Ok(());
                }
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
