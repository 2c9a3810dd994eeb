//! What a fop costs on the wire: round trips per second and CPU per fop on both sides, with a brick that answers at once.
//!
//! `cargo run --release --example null_fops -- [FOPS [CLIENT_WORKERS [BRICK_WORKERS]]]`. The bricks are processes of their own, as they are in life.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, join_all};
use mortar_brick::session::Clients;
use mortar_brick::{Brick, BrickConfig, Extras, Stack};
use mortar_client::remote::Remote;
use mortar_proto::volume::{Shape, VolumeFile};
use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::error::{Errno, Result as FopResult};
use mortar_xlators::fop::{Fop, Operation, Setattr};
use mortar_xlators::graph::{BrickSpec, Quorum};
use mortar_xlators::reply::{Changed, Reply};
use mortar_xlators::types::{ClientId, Cover, Gfid, Iatt, Kind, Lacks, Time};
use mortar_xlators::xlator::{Health, Notices, Subvol, Xlator};
use tokio::sync::{mpsc, watch};

#[derive(Debug)]
struct Null(watch::Sender<Health>);

impl Xlator for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn call<'a>(&'a self, _: &'a Ctx, fop: Fop) -> BoxFuture<'a, FopResult<Reply>> {
        let time = Time { sec: 1_700_000_000, nsec: 5 };
        let Fop::Setattr(setattr) = fop else { return Box::pin(async { Err(Errno::NOSYS.into()) }) };
        let iatt = Iatt {
            gfid: setattr.gfid,
            kind: Kind::File,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 4096,
            blocks: 8,
            atime: time,
            mtime: time,
            ctime: time,
            lacks: Lacks::empty(),
        };
        Box::pin(async move { Ok(Setattr::reply(Changed { iatt, cover: Cover::empty() })) })
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.0.subscribe()
    }
}

#[derive(Debug)]
struct Nobody(watch::Sender<bool>);

impl Clients for Nobody {
    fn attach(&self, _: ClientId, _: Notices) -> FopResult<()> {
        Ok(())
    }
    fn gone(&self, _: ClientId) {}
    fn blames(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
    fn stopped(&self) {}
}

fn volume() -> VolumeFile {
    let shape = Shape { replica: 1, arbiter: false, quorum: Quorum::Auto };
    VolumeFile::create("gv0", uuid::Uuid::from_u128(7), shape, &["127.0.0.1:1:/b".to_owned()]).expect("a volume")
}

fn runtime(workers: usize) -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
    runtime.expect("threads")
}

fn serve(workers: usize) {
    runtime(workers).block_on(async {
        let null: Subvol = Arc::new(Null(watch::Sender::new(Health::Up { session: 1 })));
        let stack = Stack::over("b", null, Arc::new(Nobody(watch::Sender::new(false))), Extras::default());
        let config = BrickConfig::new("/b", "127.0.0.1:0", volume(), "gv0-client-0");
        let brick = Brick::start_over(config, stack).await.expect("a brick");
        println!("{}", brick.address());
        std::future::pending::<()>().await;
    });
}

fn cpu(pid: &str) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime");
    Duration::from_millis(ticks * 10)
}

fn fop(n: u8) -> Fop {
    let when = Time { sec: 1_700_000_000, nsec: 77 };
    Setattr {
        gfid: Gfid::from_bytes([n; 16]),
        fd: None,
        mode: Some(0o644),
        uid: None,
        gid: None,
        atime: Some(when),
        mtime: Some(when),
        kill_priv: false,
        when,
    }
    .into()
}

async fn run(name: &str, bricks: &[Subvol], children: &[Child], callers: usize, fops: usize) {
    let before: Vec<_> = children.iter().map(|child| cpu(&child.id().to_string())).collect();
    let (mine, began) = (cpu("self"), Instant::now());
    let callers: Vec<_> = (0..callers)
        .map(|caller| {
            let bricks = bricks.to_vec();
            let each = fops / callers;
            tokio::spawn(async move {
                let caller = u8::try_from(caller + 1).expect("few callers");
                for _ in 0..each {
                    let ctx = Ctx::new(1, ClientId(3), Caller::root(), Instant::now() + Duration::from_secs(30));
                    let answers = join_all(bricks.iter().map(|brick| brick.call(&ctx, fop(caller)))).await;
                    assert!(answers.iter().all(Result::is_ok), "every brick answers");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("a caller");
    }
    let took = began.elapsed();
    let per = |time: Duration| time.as_secs_f64() * 1e6 / fops as f64;
    let bricks_cpu: Duration =
        children.iter().zip(before).map(|(child, before)| cpu(&child.id().to_string()) - before).sum();
    println!(
        "{name:<28} {:>8.0} fops/s  {:>6.1} us each  CPU per fop: client {:>5.1} us, each brick {:>5.1} us",
        fops as f64 / took.as_secs_f64(),
        per(took),
        per(cpu("self") - mine),
        per(bricks_cpu) / bricks.len() as f64,
    );
}

fn main() {
    let argument = |n: usize| std::env::args().nth(n).and_then(|text| text.parse::<usize>().ok());
    if std::env::args().nth(1).is_some_and(|first| first == "serve") {
        return serve(argument(2).unwrap_or(2));
    }
    let fops = argument(1).unwrap_or(60_000);
    let brick_workers = argument(3).unwrap_or(2).to_string();
    let me = std::env::current_exe().expect("this program");
    let mut children = Vec::new();
    let mut addresses = Vec::new();
    for _ in 0..3 {
        let mut child =
            Command::new(&me).args(["serve", &brick_workers]).stdout(Stdio::piped()).spawn().expect("a brick");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("its address");
        addresses.push(line.trim().to_owned());
        children.push(child);
    }
    runtime(argument(2).unwrap_or(2)).block_on(async {
        let (notices, _receiver) = mpsc::unbounded_channel();
        let bricks: Vec<Subvol> = addresses
            .iter()
            .map(|address| {
                let (id, path) = ("gv0-client-0".to_owned(), "/b".to_owned());
                let spec = BrickSpec { id, address: address.clone(), path, arbiter: false };
                Remote::connect(&spec, volume().id, ClientId(3), notices.clone())
            })
            .collect();
        for brick in &bricks {
            let mut health = brick.health();
            health.wait_for(|health| health.is_up()).await.expect("up");
        }
        for callers in [1, 2, 8, 32] {
            run(&format!("one brick, {callers} callers"), &bricks[..1], &children[..1], callers, fops).await;
        }
        for callers in [1, 2, 8] {
            run(&format!("three bricks, {callers} callers"), &bricks, &children, callers, fops / 2).await;
        }
    });
    for mut child in children {
        // The child runs until it is ended.
        child.kill().ok();
        child.wait().ok();
    }
}
