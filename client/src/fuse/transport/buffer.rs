//! Buffers for what the kernel sends: one message each, 1 MiB and a page.
//!
//! A fresh megabyte costs the kernel 256 page faults, so buffers are used again. A large write
//! leaves with its buffer, which comes back when the last slice of it is dropped; a small one is
//! copied out, so that what keeps it for long (a cache, a record) does not pin a megabyte.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Payloads from this size on keep their buffer; below, copying is cheaper than losing it.
pub(crate) const COPY_BYTES_MAX: usize = 128 << 10;

/// How many unused buffers are kept: enough for a burst of large writes from a few writers.
const IDLE_MAX: usize = 16;

/// Where buffers come from and go to.
#[derive(Debug)]
pub(crate) struct Pool {
    capacity: usize,
    idle: Mutex<Vec<Vec<u8>>>,
}

impl Pool {
    /// A pool of buffers that hold a message of `capacity` bytes.
    pub(crate) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { capacity, idle: Mutex::new(Vec::with_capacity(IDLE_MAX)) })
    }

    /// An empty buffer. Never waits: what bounds the memory is the number of requests in flight.
    pub(crate) fn take(self: &Arc<Self>) -> Buffer {
        let bytes = self.idle.lock().pop().unwrap_or_else(|| Vec::with_capacity(self.capacity));
        Buffer { bytes, pool: Arc::clone(self) }
    }
}

/// One buffer, which goes back to its pool when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    pool: Arc<Pool>,
}

impl Buffer {
    /// The message.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.bytes
    }

    /// Where the kernel's message goes; it is read with [`rustix::buffer::spare_capacity`].
    pub(crate) fn storage(&mut self) -> &mut Vec<u8> {
        self.bytes.clear();
        &mut self.bytes
    }

    /// A part of the message that outlives the buffer's turn.
    pub(crate) fn payload(self, range: Range<usize>) -> Bytes {
        if range.len() < COPY_BYTES_MAX {
            Bytes::copy_from_slice(&self.bytes[range])
        } else {
            Bytes::from_owner(self).slice(range)
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut idle = self.pool.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_payload_is_not_copied_and_gives_its_buffer_back() {
        let pool = Pool::new(1 << 20);
        let mut buffer = pool.take();
        buffer.storage().extend_from_slice(&vec![7; 200 << 10]);
        let address = buffer.filled().as_ptr() as usize;
        let payload = buffer.payload(80..200 << 10);
        assert_eq!(payload.as_ptr() as usize, address + 80);
        assert!(pool.idle.lock().is_empty());
        drop(payload);
        assert_eq!(pool.idle.lock().len(), 1);
    }

    #[test]
    fn a_small_payload_gives_its_buffer_back_at_once() {
        let pool = Pool::new(1 << 20);
        let mut buffer = pool.take();
        buffer.storage().extend_from_slice(b"header and payload");
        let payload = buffer.payload(11..18);
        assert_eq!(&payload[..], b"payload");
        assert_eq!(pool.idle.lock().len(), 1);
    }
}
