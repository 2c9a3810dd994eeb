//! Many at once: threads that make, move, open and remove the same few names.

use futures::FutureExt as _;

use super::*;
use crate::fop::{Fop, Open, Release};

const THREADS: u64 = 4;
const FOPS: u64 = 1500;
const NAMES: u64 = 8;

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % below
    }

    fn name(&mut self) -> Name {
        name(&format!("name-{}", self.next(NAMES)))
    }
}

/// One of the fops that change names; `places` are directories that stay.
fn fop(random: &mut Random, brick: &Brick, places: &[Gfid], known: &[Gfid]) -> Fop {
    let any = |random: &mut Random, gfids: &[Gfid]| gfids[random.next(gfids.len() as u64) as usize];
    let (parent, name, birth) = (any(random, places), random.name(), brick.birth());
    let when = at(random.next(1000) as i64);
    match random.next(12) {
        0..2 => Create { parent, name, birth, content: Bytes::from_static(b"x"), open: None, lease: false }.into(),
        2 => mkdir(parent, "name-1", birth).into(),
        3 => Symlink { parent, name, birth, target: Bytes::from_static(b"t") }.into(),
        4..6 => Unlink { parent, name, only: Only::Any, when }.into(),
        6 => Rmdir { parent, name, when }.into(),
        7 => Link { gfid: any(random, known), parent, name, when }.into(),
        8 => Lookup { parent, name }.into(),
        9 => Open { fd: Fd { id: random.next(3), gfid: any(random, known) }, flags: OpenFlags::READ, when }.into(),
        _ => {
            let (to_parent, to_name) = (any(random, places), random.name());
            let replace = if random.next(3) == 0 { Replace::Exchange } else { Replace::Yes };
            Rename { from_parent: parent, from_name: name, to_parent, to_name, replace, when }.into()
        }
    }
}

fn work(seed: u64, brick: &Brick, places: &[Gfid]) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let ctx = Ctx { client: ClientId(u128::from(seed)), ..brick.ctx.clone() };
    let mut known = vec![ROOT];
    for _ in 0..FOPS {
        let fop = fop(&mut random, brick, places, &known);
        let release = if let Fop::Open(open) = &fop { Some(Release { fd: open.fd }) } else { None };
        let answer = brick.posix().call(&ctx, fop).now_or_never().expect("none of these waits");
        match answer {
            Ok(crate::reply::Reply::Create(made)) => known.push(made.iatt.gfid),
            Ok(_) => {}
            Err(FopError::Refused(errno)) => assert_ne!(errno, Errno::IO, "SEED={seed}"),
            Err(other) => panic!("SEED={seed}: {other}"),
        }
        if let Some(release) = release.filter(|_| random.next(2) == 0) {
            assert!(brick.posix().call(&ctx, release.into()).now_or_never().is_some());
        }
        if known.len() > 20 {
            known.drain(1..10);
        }
    }
}

#[test]
fn threads_that_fight_over_names_leave_a_whole_brick() {
    let brick = Brick::new();
    let places = [ROOT, brick.mkdir(ROOT, "place-1"), brick.mkdir(ROOT, "place-2")];
    // A release hands what takes long to a runtime.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    std::thread::scope(|scope| {
        for seed in 1..=THREADS {
            let (brick, places, handle) = (&brick, &places, runtime.handle().clone());
            scope.spawn(move || {
                let _entered = handle.enter();
                work(seed, brick, places);
            });
        }
    });
    for seed in 1..=THREADS {
        brick.posix().client_gone(ClientId(u128::from(seed)));
    }
    drop(runtime);
    // A name whose removal met a lookup, or a directory whose move did, may have its handle made by the next lookup.
    for place in places {
        for number in 0..NAMES {
            let _found = brick.lookup(place, &format!("name-{number}"));
        }
    }
    brick.assert_whole();
}
