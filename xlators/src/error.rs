//! How a fop can fail: the brick refused it, a fence stopped it, or no answer came.
//!
//! Replicate lives on the difference; never turn one into the other to make code shorter.

use std::fmt;

/// An error number of the operating system.
pub use rustix::io::Errno;

/// Why a fop has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FopError {
    /// The brick answered, and this is its answer. Nothing was changed.
    Refused(Errno),
    /// The fop ran under a lease epoch that is no longer current. Nothing was changed; ask for the lease again.
    Fenced,
    /// No answer came. The fop may or may not have been applied.
    Unreachable,
}

/// The result of a fop.
pub type Result<T, E = FopError> = std::result::Result<T, E>;

impl From<Errno> for FopError {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

impl FopError {
    /// What a program sees: the errno of a refusal, `ENOTCONN` for an answer that never came, `ESTALE` for a fence.
    pub fn errno(self) -> Errno {
        match self {
            Self::Refused(errno) => errno,
            Self::Fenced => Errno::STALE,
            Self::Unreachable => Errno::NOTCONN,
        }
    }

    /// The inode, or the directory that a name was sought in, does not exist there.
    pub fn is_absent(self) -> bool {
        matches!(self, Self::Refused(Errno::NOENT | Errno::STALE))
    }
}

impl fmt::Display for FopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(errno) => write!(f, "refused: {errno}"),
            Self::Fenced => f.write_str("fenced: the lease is no longer ours"),
            Self::Unreachable => f.write_str("unreachable: no answer came"),
        }
    }
}

impl std::error::Error for FopError {}
