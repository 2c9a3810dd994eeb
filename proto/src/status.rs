//! A fop's error on the wire: the one place where an errno crosses.

use mortar_xlators::error::{Errno, FopError};

use crate::pb;
use crate::pb::response::Answer;

/// The highest errno that Linux gives to a program.
const ERRNO_MAX: u32 = 4095;

/// An errno from its number; what can be none is `EIO`.
pub fn errno_from_wire(number: u32) -> Errno {
    match number {
        1..=ERRNO_MAX => Errno::from_raw_os_error(number.cast_signed()),
        _ => Errno::IO,
    }
}

/// The number of an errno.
pub fn errno_to_wire(errno: Errno) -> u32 {
    errno.raw_os_error().unsigned_abs()
}

/// The answer that says why there is none.
pub fn error_to_wire(error: FopError) -> Answer {
    match error {
        FopError::Refused(errno) => Answer::Refused(errno_to_wire(errno)),
        FopError::Fenced => Answer::Fenced(pb::Fenced {}),
        FopError::Unreachable => Answer::Unreachable(pb::Unreachable {}),
    }
}

/// The error, if the answer is one.
pub fn error_from_wire(answer: &Answer) -> Option<FopError> {
    match answer {
        Answer::Refused(number) => Some(FopError::Refused(errno_from_wire(*number))),
        Answer::Fenced(_) => Some(FopError::Fenced),
        Answer::Unreachable(_) => Some(FopError::Unreachable),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_comes_back_and_no_number_is_no_errno() {
        for error in [FopError::Refused(Errno::NOENT), FopError::Fenced, FopError::Unreachable] {
            assert_eq!(error_from_wire(&error_to_wire(error)), Some(error));
        }
        for number in [0, 4096, u32::MAX] {
            assert_eq!(errno_from_wire(number), Errno::IO);
        }
    }
}
