//! When a reader looks for the next request instead of going to sleep.
//!
//! A program that asks for one thing after the other (`ls -l` for the access control list of each file, `find` for
//! attributes) sends the next request a few microseconds after the last answer. To be woken on an idle processor for it
//! takes the reader longer than to answer it. So a reader that sees that it is woken late looks for the next request
//! itself, for about as long as being woken takes. On a busy machine it is woken at once, and leaves the processor to
//! others.
//!
//! It looks only after questions that were answered at once, and only while nothing else is in work: what waits for a
//! brick, and a change that goes to the bricks later, needs the processor more. A look in vain is the last for a while, so
//! that an idle mount uses no processor.

use std::time::{Duration, Instant};

/// How long the reader looks: about what it takes to be woken. Programs that take longer gain little.
pub(super) const LOOK_TIME: Duration = Duration::from_micros(50);
/// A reader that slept and has the next request within this time after its answer was woken at once.
const WOKEN_AT_ONCE: Duration = Duration::from_micros(10);
/// After this time it was not for being woken late that the next request took so long.
const SOON: Duration = Duration::from_micros(150);
/// So many times in a row the reader must have been woken late.
const LATE_MIN: u32 = 4;
/// After so many looks the reader sleeps some times, to see whether it would still be woken late.
const LOOKS_MAX: u32 = 128;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// It was a question, and has its answer.
    Answered,
    /// It was a change, and has its answer.
    Changed,
    /// It waits for something, or nobody waits for an answer.
    Other,
}

/// How close to each other the requests are that a reader gets.
#[derive(Debug, Default)]
pub(super) struct Burst {
    /// When the last message was answered, if it was a question.
    answered: Option<Instant>,
    /// How often in a row the reader was woken late for a request that came soon.
    late: u32,
    /// So often the reader may look before it sees again whether it must.
    looks: u32,
}

impl Burst {
    /// A message has been read, at this moment.
    pub(super) fn came(&mut self, now: Instant) {
        let Some(answered) = self.answered.take() else { return };
        if self.looks > 0 {
            self.looks -= 1;
            return;
        }
        let gap = now.saturating_duration_since(answered);
        self.late = if gap > WOKEN_AT_ONCE && gap <= SOON { self.late + 1 } else { 0 };
        if self.late >= LATE_MIN {
            (self.late, self.looks) = (0, LOOKS_MAX);
        }
    }

    /// It has been served.
    pub(super) fn served(&mut self, served: Served, now: Instant) {
        match served {
            Served::Answered => self.answered = Some(now),
            Served::Changed => *self = Self::default(),
            Served::Other => {}
        }
    }

    /// Whether the next request is likely to come at once, and the reader would be woken late.
    pub(super) fn is_worth_a_look(&self) -> bool {
        self.answered.is_some() && self.looks > 0
    }

    /// The next request did not come at once.
    pub(super) fn is_over(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time between an answer and the next request.
    const LATE: Duration = Duration::from_micros(40);
    const AT_ONCE: Duration = Duration::from_micros(5);
    const PAUSE: Duration = Duration::from_millis(1);

    struct Story {
        burst: Burst,
        now: Instant,
    }

    impl Story {
        fn new() -> Self {
            let mut story = Self { burst: Burst::default(), now: Instant::now() };
            story.serve(Served::Answered, PAUSE, 1);
            story
        }

        /// So many messages come, each so long after the one before.
        fn serve(&mut self, served: Served, gap: Duration, messages: u32) -> bool {
            for _ in 0..messages {
                self.now += gap;
                self.burst.came(self.now);
                self.burst.served(served, self.now);
            }
            self.burst.is_worth_a_look()
        }
    }

    #[test]
    fn a_reader_looks_when_it_is_woken_late_and_sees_again_whether_it_still_is() {
        let mut story = Story::new();
        assert!(!story.serve(Served::Answered, LATE, LATE_MIN - 1));
        assert!(story.serve(Served::Answered, LATE, 1));
        assert!(story.serve(Served::Answered, AT_ONCE, LOOKS_MAX - 1));
        assert!(!story.serve(Served::Answered, AT_ONCE, 1));
        assert!(!story.serve(Served::Answered, AT_ONCE, 100), "it is woken at once");
        assert!(story.serve(Served::Answered, LATE, LATE_MIN));
        story.burst.is_over();
        assert!(!story.burst.is_worth_a_look());
    }

    #[test]
    fn pauses_and_changes_are_no_reason_to_look() {
        let mut story = Story::new();
        assert!(!story.serve(Served::Answered, PAUSE, 100));
        assert!(!story.serve(Served::Changed, LATE, 100));
        assert!(story.serve(Served::Answered, LATE, LATE_MIN + 1));
        assert!(!story.serve(Served::Changed, LATE, 1));
        assert!(!story.serve(Served::Answered, LATE, 1));
    }

    #[test]
    fn what_waits_for_a_brick_interrupts_a_burst() {
        let mut story = Story::new();
        assert!(story.serve(Served::Answered, LATE, LATE_MIN));
        assert!(!story.serve(Served::Other, LATE, 1));
        assert!(story.serve(Served::Answered, PAUSE, 1));
    }
}
