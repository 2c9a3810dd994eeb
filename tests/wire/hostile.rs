//! Frames are hostile input: whatever comes, the brick refuses it or closes the connection, and serves the others.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::{BufMut, Bytes};
use mortar_proto::codec::{request_from_wire, request_to_wire};
use mortar_proto::pb;
use mortar_proto::pb::response::Answer;
use mortar_proto::status::errno_from_wire;
use mortar_proto::wire::{Encodes, open_session};
use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::error::Errno;
use mortar_xlators::types::{ClientId, MAX_IO_BYTES};
use proptest::prelude::*;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Status, Streaming};

use super::{Pair, rmdir, samples};

/// Bytes that say they are a frame.
struct Raw(Vec<u8>);

impl Encodes for Raw {
    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn write(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.0);
    }
}

/// A client that sends what it likes.
struct Attacker {
    frames: mpsc::UnboundedSender<Raw>,
    answers: Streaming<pb::FromBrick>,
    last_id: u64,
}

fn hello(pair: &Pair) -> pb::Hello {
    pb::Hello {
        version: 1,
        client_high: 66,
        client_low: 6,
        nonce: 6,
        volume_id: pair.volume.id.as_bytes().to_vec().into(),
        brick_id: "gv0-client-0".to_owned(),
        control: false,
        resume: false,
        oldest: 0,
    }
}

impl Attacker {
    async fn begin(pair: &Pair, first: Vec<u8>) -> Result<Self, Status> {
        let (frames, receiver) = mpsc::unbounded_channel();
        frames.send(Raw(first)).unwrap();
        let channel =
            Endpoint::from_shared(format!("http://{}", pair.brick.address())).unwrap().connect().await.unwrap();
        let answers = open_session(channel, UnboundedReceiverStream::new(receiver)).await?;
        Ok(Self { frames, answers, last_id: 0 })
    }

    async fn welcomed(pair: &Pair) -> Self {
        let first = pb::FromClient { hello: Some(hello(pair)), ..Default::default() };
        let mut attacker = Self::begin(pair, first.encode_to_vec()).await.unwrap();
        assert!(attacker.answers.message().await.unwrap().unwrap().welcome.is_some());
        attacker
    }

    fn send(&self, frame: pb::FromClient) {
        self.frames.send(Raw(frame.encode_to_vec())).unwrap();
    }

    /// The errno with which a request is refused.
    async fn refused(&mut self, mut request: pb::Request) -> Errno {
        self.last_id += 1;
        request.id = self.last_id;
        self.send(pb::FromClient { requests: vec![request], ..Default::default() });
        let response = self.answers.message().await.unwrap().unwrap().responses.remove(0);
        assert_eq!(response.id, self.last_id);
        match response.answer {
            Some(Answer::Refused(number)) => errno_from_wire(number),
            other => panic!("not refused: {other:?}"),
        }
    }

    /// Why the brick closes the connection.
    async fn closed(mut self) -> Status {
        loop {
            match self.answers.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("closed without a reason"),
                Err(status) => return status,
            }
        }
    }
}

fn ctx() -> Ctx {
    Ctx::new(1, ClientId(1), Caller::root(), Instant::now() + std::time::Duration::from_secs(9))
}

fn requests() -> &'static [pb::Request] {
    static REQUESTS: OnceLock<Vec<pb::Request>> = OnceLock::new();
    let request = |sample: (_, _)| request_to_wire(1, &ctx(), sample.0, Instant::now());
    REQUESTS.get_or_init(|| samples::all().into_iter().map(request).collect())
}

#[tokio::test]
async fn who_does_not_say_hello_properly_is_not_let_in() {
    let pair = Pair::new().await;
    let refused = async |hello: Option<pb::Hello>| {
        let first = pb::FromClient { hello, ..Default::default() };
        Attacker::begin(&pair, first.encode_to_vec()).await.err().unwrap()
    };
    let good = hello(&pair);
    assert_eq!(refused(None).await.code(), Code::InvalidArgument);
    let old = refused(Some(pb::Hello { version: 0, ..good.clone() })).await;
    assert_eq!(old.message(), "brick gv0-client-0 speaks protocol version 1, the client 0");
    let other = refused(Some(pb::Hello { volume_id: Bytes::from_static(b"short"), ..good.clone() })).await;
    assert!(other.message().starts_with("this is a brick of volume gv0 ("), "{}", other.message());
    let brick = refused(Some(pb::Hello { brick_id: "x".repeat(1 << 20), ..good.clone() })).await;
    assert_eq!(brick.message(), format!("this is brick gv0-client-0, the client wants brick {}", "x".repeat(64)));
    let garbage = Attacker::begin(&pair, vec![0xff; 100]).await.err().unwrap();
    assert_eq!(garbage.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_the_next_request_is_served() {
    let pair = Pair::new().await;
    let mut attacker = Attacker::welcomed(&pair).await;
    let mut refused = async |fop: Option<pb::request::Fop>| {
        attacker.refused(pb::Request { fop, deadline_ms: 1000, ..Default::default() }).await
    };
    let gfid = || Some(pb::Gfid { high: 1, low: 2 });
    let lookup = |name: &[u8]| {
        let name = Bytes::copy_from_slice(name);
        Some(pb::request::Fop::Lookup(pb::Lookup { parent: gfid(), name }))
    };
    assert_eq!(refused(None).await, Errno::INVAL);
    for name in [&b""[..], b".", b"..", b"a/b", b"../x", b"a\0b"] {
        assert_eq!(refused(lookup(name)).await, Errno::INVAL, "{name:?}");
    }
    assert_eq!(refused(lookup(&[b'x'; 256])).await, Errno::NAMETOOLONG);
    let null = Some(pb::Gfid::default());
    assert_eq!(refused(Some(pb::request::Fop::Readlink(pb::Readlink { gfid: null }))).await, Errno::INVAL);
    let write = pb::Write {
        gfid: gfid(),
        offset: Some(0),
        data: vec![0; MAX_IO_BYTES + 1].into(),
        when: Some(pb::Time::default()),
        ..Default::default()
    };
    assert_eq!(refused(Some(pb::request::Fop::Write(write.clone()))).await, Errno::INVAL);
    let far = pb::Write { offset: Some(u64::MAX), data: vec![0; 2].into(), ..write.clone() };
    assert_eq!(refused(Some(pb::request::Fop::Write(far))).await, Errno::FBIG);
    let no_time = pb::Write { data: vec![0; 2].into(), when: None, ..write };
    assert_eq!(refused(Some(pb::request::Fop::Write(no_time))).await, Errno::INVAL);
    let read = pb::Read { gfid: gfid(), size: u32::MAX, ..Default::default() };
    assert_eq!(refused(Some(pb::request::Fop::Read(read))).await, Errno::INVAL);
    let lease = pb::Lease { gfids: vec![pb::Gfid { high: 1, low: 1 }; 1025], mode: 1, ..Default::default() };
    assert_eq!(refused(Some(pb::request::Fop::Lease(lease))).await, Errno::INVAL);
    let lease = pb::Lease { mode: 99, ..Default::default() };
    assert_eq!(refused(Some(pb::request::Fop::Lease(lease))).await, Errno::INVAL);
    assert_eq!(pair.recorder.calls.load(Ordering::SeqCst), 0, "nothing of this reaches a layer");
    assert_eq!(refused(lookup(b"fine")).await, Errno::NOSYS);
    assert_eq!(pair.recorder.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn who_breaks_the_protocol_is_hung_up_on_and_others_are_served() {
    let pair = Pair::new().await;
    let attacker = Attacker::welcomed(&pair).await;
    attacker.send(pb::FromClient { hello: Some(hello(&pair)), ..Default::default() });
    assert_eq!(attacker.closed().await.message(), "a second hello on one connection");

    let mut attacker = Attacker::welcomed(&pair).await;
    let request = pb::Request { id: 1, ..request_to_wire(1, &ctx(), rmdir(1).into(), Instant::now()) };
    assert_eq!(attacker.refused(request.clone()).await, Errno::NOSYS);
    attacker.send(pb::FromClient { requests: vec![request], acknowledged: vec![1], ..Default::default() });
    assert_eq!(attacker.closed().await.message(), "a request was sent again after its answer arrived");

    let attacker = Attacker::welcomed(&pair).await;
    attacker.frames.send(Raw(vec![0x12, 0xff, 0xff, 0xff, 0xff, 0x7f])).unwrap();
    assert_eq!(attacker.closed().await.code(), Code::InvalidArgument);

    let attacker = Attacker::welcomed(&pair).await;
    attacker.frames.send(Raw(vec![0; 5 << 20])).unwrap();
    assert_eq!(attacker.closed().await.code(), Code::OutOfRange);

    assert_eq!(pair.remote.call(&pair.ctx(), rmdir(2).into()).await.unwrap_err(), Errno::NOSYS.into());
}

/// Whatever decodes can be asked every question, and says the same when it travels again.
fn takes_apart(request: pb::Request) {
    let Ok((ctx, fop)) = request_from_wire(request, ClientId(1), Instant::now()) else { return };
    let _ = (fop.effect(), fop.target(), fop.leases());
    let again = request_to_wire(1, &ctx, fop.clone(), Instant::now());
    let (_, same) = request_from_wire(again, ClientId(1), Instant::now()).unwrap();
    assert_eq!(format!("{fop:?}"), format!("{same:?}"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(frame) = pb::FromClient::decode(&bytes[..]) {
            frame.requests.into_iter().for_each(takes_apart);
        }
        if let Ok(request) = pb::Request::decode(&bytes[..]) {
            takes_apart(request);
        }
    }

    #[test]
    fn no_damage_to_a_good_request_makes_the_decoder_panic(
        which in any::<prop::sample::Index>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = which.get(requests()).encode_to_vec();
        for (place, byte) in damage {
            *place.get_mut(&mut bytes) = byte;
        }
        if let Ok(request) = pb::Request::decode(&bytes[..]) {
            takes_apart(request);
        }
    }
}
