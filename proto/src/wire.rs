//! Frames in and out of a gRPC stream, with the buffers that fit them.
//!
//! The stock codec grows its buffer by doubling under a message of a megabyte; this one reserves what the message
//! needs. A client keeps each request until it is answered, so its frames share them instead of cloning.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::BufMut;
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;

use crate::{FRAME_BYTES_MAX, pb};

/// The codec of the service: prost, with room reserved.
pub struct Presized<T, U>(PhantomData<fn(T) -> U>);

impl<T, U> fmt::Debug for Presized<T, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Presized")
    }
}

impl<T, U> Default for Presized<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

/// What can be written as one message.
pub trait Encodes: Send + Sync + 'static {
    /// How many bytes it takes.
    fn bytes(&self) -> usize;
    /// Write it.
    fn write(&self, buf: &mut impl BufMut);
}

impl<M: Message + 'static> Encodes for M {
    fn bytes(&self) -> usize {
        self.encoded_len()
    }

    fn write(&self, buf: &mut impl BufMut) {
        self.encode_raw(buf);
    }
}

impl<T: Encodes, U: Message + Default + 'static> Codec for Presized<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = Half<T>;
    type Decoder = Half<U>;

    fn encoder(&mut self) -> Half<T> {
        Half(PhantomData)
    }

    fn decoder(&mut self) -> Half<U> {
        Half(PhantomData)
    }
}

/// One direction of [`Presized`].
pub struct Half<T>(PhantomData<fn(T)>);

impl<T> fmt::Debug for Half<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Half")
    }
}

/// 64 KiB at a time: some hundred small messages for one allocation. A chunk is handed on once it has a megabyte.
const BUFFERS: (usize, usize) = (64 << 10, 1 << 20);

impl<T: Encodes> Encoder for Half<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.reserve(item.bytes());
        item.write(buf);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFERS.0, BUFFERS.1)
    }
}

impl<U: Message + Default + 'static> Decoder for Half<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        U::decode(buf).map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFERS.0, BUFFERS.1)
    }
}

/// [`pb::FromClient`] as a client sends it: with requests that it also keeps.
#[derive(Clone, Debug, Default)]
pub struct ClientFrame {
    /// In the first frame only.
    pub hello: Option<pb::Hello>,
    /// The requests.
    pub requests: Vec<Arc<pb::Request>>,
    /// Ids of answers that arrived.
    pub acknowledged: Vec<u64>,
    /// To be sent back.
    pub heartbeat: Option<u64>,
    /// The session ends.
    pub goodbye: bool,
    /// Ids of requests that wait, and that nobody waits for any more.
    pub given_up: Vec<u64>,
}

impl Encodes for ClientFrame {
    fn bytes(&self) -> usize {
        use prost::encoding::{bool, message, uint64};
        let hello = self.hello.as_ref().map_or(0, |hello| message::encoded_len(1, hello));
        let requests = self.requests.iter().map(|request| message::encoded_len(2, &**request)).sum::<usize>();
        let heartbeat = self.heartbeat.map_or(0, |number| uint64::encoded_len(4, &number));
        let goodbye = if self.goodbye { bool::encoded_len(5, &true) } else { 0 };
        let lists = uint64::encoded_len_packed(3, &self.acknowledged) + uint64::encoded_len_packed(6, &self.given_up);
        hello + requests + heartbeat + goodbye + lists
    }

    fn write(&self, buf: &mut impl BufMut) {
        use prost::encoding::{bool, message, uint64};
        if let Some(hello) = &self.hello {
            message::encode(1, hello, buf);
        }
        for request in &self.requests {
            message::encode(2, &**request, buf);
        }
        uint64::encode_packed(3, &self.acknowledged, buf);
        if let Some(number) = self.heartbeat {
            uint64::encode(4, &number, buf);
        }
        if self.goodbye {
            bool::encode(5, &true, buf);
        }
        uint64::encode_packed(6, &self.given_up, buf);
    }
}

/// Open the session stream of a brick, with frames of any make, such as [`ClientFrame`].
pub async fn open_session<F, S>(
    channel: tonic::transport::Channel,
    frames: S,
) -> Result<tonic::Streaming<pb::FromBrick>, Status>
where
    F: Encodes,
    S: tonic::codegen::tokio_stream::Stream<Item = F> + Send + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(FRAME_BYTES_MAX);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static("/mortar.v1.Brick/Session");
    let codec = Presized::<F, pb::FromBrick>::default();
    Ok(grpc.streaming(tonic::Request::new(frames), path, codec).await?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_frame_is_the_message() {
        let request = pb::Request { id: 7, uid: 1000, groups: vec![1, 2], ..Default::default() };
        let hello = pb::Hello { version: 1, brick_id: "gv0-client-0".to_owned(), ..Default::default() };
        let shared = ClientFrame {
            hello: Some(hello.clone()),
            requests: vec![Arc::new(request.clone()), Arc::new(pb::Request::default())],
            acknowledged: vec![3, 300, 70_000],
            heartbeat: Some(0),
            goodbye: true,
            given_up: vec![9, 1 << 40],
        };
        let message = pb::FromClient {
            hello: Some(hello),
            requests: vec![request, pb::Request::default()],
            acknowledged: vec![3, 300, 70_000],
            heartbeat: Some(0),
            goodbye: true,
            given_up: vec![9, 1 << 40],
        };
        let mut bytes = Vec::new();
        shared.write(&mut bytes);
        assert_eq!(pb::FromClient::decode(&bytes[..]).unwrap(), message);
        assert!(shared.bytes() >= bytes.len() && shared.bytes() <= bytes.len() + 1);
    }
}
