//! What travels between a client and a brick.
//!
//! [`pb`] is generated from `mortar.proto`; [`codec`] turns fops and replies into its messages and back, checking
//! everything that comes in; [`status`] is the one place where an errno crosses; [`wire`] puts messages into frames.

pub mod codec;
pub mod status;
pub mod volume;
pub mod wire;

use mortar_xlators::types::MAX_IO_BYTES;

/// The messages and the service, as `mortar.proto` has them.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::use_self)]
pub mod pb {
    tonic::include_proto!("mortar.v1");
}

/// The messages and the service for the reflection service of a brick.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// What the two sides of a connection must agree on. Anything that an older peer would misunderstand is a new version;
/// a field that it may ignore is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Version {
    /// Two sessions per client and brick, leases, answers saved until acknowledged.
    V1 = 1,
}

impl Version {
    /// What this program speaks.
    pub const CURRENT: Self = Self::V1;
}

/// The largest frame that is read, on either side: one full frame, with a message of the largest kind on top.
pub const FRAME_BYTES_MAX: usize = 4 * MAX_IO_BYTES;

/// A frame takes no further message once it has this many bytes: a full frame is one gather and one system call or two.
pub const FRAME_BYTES_FULL: usize = MAX_IO_BYTES;

/// The most messages in one frame, so that one frame's work does not hold up what follows for long.
pub const FRAME_MESSAGES_MAX: usize = 256;

/// The largest answer: a frame may hold almost [`FRAME_BYTES_FULL`] before it.
pub const RESPONSE_BYTES_MAX: usize = FRAME_BYTES_MAX - FRAME_BYTES_FULL - 65_536;

/// The window of the data stream (HTTP/2): four payloads of the largest size.
pub const STREAM_WINDOW_BYTES: u32 = 4 << 20;

/// The window of a connection (HTTP/2).
pub const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;

/// The largest HTTP/2 frame: a payload of the largest size in a few, a small one always in one.
pub const HTTP_FRAME_BYTES_MAX: u32 = 256 << 10;
