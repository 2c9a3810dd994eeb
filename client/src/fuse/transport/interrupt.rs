//! What a signal does to a request that waits.
//!
//! The kernel tells us once that the caller of a request got a signal, whatever the signal is,
//! and then waits for the answer as before. A process that waits for a lock gets EINTR, as the
//! manual says. One that waits in stat(2) must not: only when it is being killed may it go early,
//! and that is read from `/proc`, since the kernel does not say so again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// What a signal to the caller does to a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnSignal {
    /// Nothing: the request runs to its end.
    Finish,
    /// Only a signal that kills ends the wait. The answer is EINTR, which nobody will see.
    GiveUpIfKilled,
    /// The same, but what was begun runs on to its end without the caller. For changes: nobody could say any more
    /// whether and when one that was dropped happens, or what of it is cached.
    RunOnIfKilled,
    /// Every signal ends the wait with EINTR. For waits on other processes, which may be long:
    /// these do not count against the bound on requests in flight.
    GiveUp,
}

/// How often a process that got a signal is looked at, to see whether it is being killed.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The requests that wait, by their number.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<HashMap<u64, Option<oneshot::Sender<()>>, foldhash::fast::RandomState>>);

/// Whether a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It does, and now knows of the signal.
    Waiting,
    /// It has been answered, or is just being looked at for the first time.
    Unknown,
}

impl Waiting {
    /// Notes that a request waits; the receiver hears of a signal.
    pub(crate) fn enter(&self, unique: u64) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().insert(unique, Some(sender));
        receiver
    }

    /// It waits no more.
    pub(crate) fn leave(&self, unique: u64) {
        self.0.lock().remove(&unique);
    }

    /// The caller of this request got a signal.
    pub(crate) fn signal(&self, unique: u64) -> Found {
        match self.0.lock().entry(unique) {
            Entry::Occupied(mut waiting) => {
                if let Some(sender) = waiting.get_mut().take() {
                    // The receiver is gone if the answer is on its way.
                    let _ = sender.send(());
                }
                Found::Waiting
            }
            Entry::Vacant(_) => Found::Unknown,
        }
    }
}

/// Ends when the wait of a request must end, and else never.
pub(crate) async fn give_up(signal: oneshot::Receiver<()>, on_signal: OnSignal, pid: u32) {
    let signalled = signal.await.is_ok();
    match on_signal {
        OnSignal::GiveUp if signalled => return,
        OnSignal::GiveUpIfKilled | OnSignal::RunOnIfKilled if signalled && pid != 0 => {
            while !is_being_killed(pid) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            return;
        }
        OnSignal::Finish | OnSignal::GiveUpIfKilled | OnSignal::RunOnIfKilled | OnSignal::GiveUp => {}
    }
    std::future::pending::<()>().await;
}

/// Whether SIGKILL waits for the thread. The kernel turns every deadly signal into SIGKILL for all threads.
fn is_being_killed(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| has_sigkill(&status))
}

fn has_sigkill(status: &str) -> bool {
    const SIGKILL_BIT: u64 = 1 << (libc::SIGKILL - 1);
    let sets = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
    sets.filter_map(|set| u64::from_str_radix(set.trim(), 16).ok()).any(|set| set & SIGKILL_BIT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_deadly_signal_counts_as_killed() {
        assert!(has_sigkill("Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(!has_sigkill("Name:\tx\nSigPnd:\t0000000000002000\nShdPnd:\t0000000000002000\n"));
    }

    #[test]
    fn a_second_signal_to_one_request_is_known() {
        let waiting = Waiting::default();
        let mut receiver = waiting.enter(8);
        assert_eq!(waiting.signal(8), Found::Waiting);
        assert_eq!(waiting.signal(8), Found::Waiting);
        assert!(receiver.try_recv().is_ok());
        waiting.leave(8);
        assert_eq!(waiting.signal(8), Found::Unknown);
    }
}
