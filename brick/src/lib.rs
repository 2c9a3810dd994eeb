//! A brick: one disk's directory, served to the clients of one volume.
//!
//! [`Brick::start`] is what tests, `mortar brick` and `brickd` share; [`daemon`] is the process around it. [`stack`] is
//! what a brick does with a fop, [`session`] what it knows of a client, `service` the gRPC between them.

pub mod daemon;
mod dispatch;
mod server;
mod service;
pub mod session;
pub mod stack;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use mortar_proto::DESCRIPTORS;
use mortar_proto::volume::VolumeFile;
use tokio::net::TcpListener;
use tracing::info;

pub use crate::daemon::{BrickArgs, run};
use crate::dispatch::dispatch;
use crate::server::Server;
pub use crate::server::Threads;
use crate::service::{Identity, Service};
use crate::session::Sessions;
pub use crate::stack::{Extras, Stack};

/// How long a session outlives the last message of its client.
pub const LEASE_TERM: Duration = Duration::from_secs(10);

/// How long connections may take to close when the brick stops.
const STOP_WAIT: Duration = Duration::from_secs(2);

/// How long a brick that starts waits for its port, and how often it tries: there is no event to wait for.
const PORT_WAIT: Duration = Duration::from_secs(2);
const PORT_POLL: Duration = Duration::from_millis(20);

/// What a brick is told when it starts.
#[derive(Clone, Debug)]
pub struct BrickConfig {
    /// The directory.
    pub path: PathBuf,
    /// Host and port to listen on; port 0 takes any.
    pub listen: String,
    /// The volume.
    pub volume: VolumeFile,
    /// Which brick of the volume this is, such as `gv0-client-2`.
    pub brick_id: String,
    /// How long a session outlives the last message of its client: [`LEASE_TERM`], except in tests.
    pub lease_term: Duration,
    /// Where it serves connections.
    pub threads: Threads,
    /// What it does beside serving.
    pub extras: Extras,
}

impl BrickConfig {
    /// A brick as people run them.
    pub fn new(path: impl Into<PathBuf>, listen: impl Into<String>, volume: VolumeFile, brick_id: &str) -> Self {
        let (path, listen) = (path.into(), listen.into());
        let brick_id = brick_id.to_owned();
        let (lease_term, threads, extras) = (LEASE_TERM, Threads::Shared, Extras::default());
        Self { path, listen, volume, brick_id, lease_term, threads, extras }
    }
}

/// A running brick. Dropping it stops it as a crash would; [`Brick::shutdown`] stops it in order.
#[derive(Debug)]
pub struct Brick {
    address: SocketAddr,
    service: Service,
    sessions: Arc<Sessions>,
    stack: Stack,
    server: Option<Server>,
}

impl Brick {
    /// Check the directory, open it, and serve it. The error is one line that says what is wrong.
    pub async fn start(config: BrickConfig) -> Result<Self> {
        // The port first: a second brick on the same directory is then told so before it touches anything.
        let listener = listen(&config.listen).await?;
        let stack = Stack::open(&config, now_ns())?;
        Self::serve(listener, &config, stack).await
    }

    /// Serve any stack: what [`Brick::start`] does once the directory is open.
    pub async fn start_over(config: BrickConfig, stack: Stack) -> Result<Self> {
        let listener = listen(&config.listen).await?;
        Self::serve(listener, &config, stack).await
    }

    async fn serve(listener: TcpListener, config: &BrickConfig, stack: Stack) -> Result<Self> {
        let address = listener.local_addr().context("cannot read the address that the brick listens on")?;
        let identity = Identity {
            volume: config.volume.name.clone(),
            volume_id: config.volume.id,
            brick_id: config.brick_id.clone(),
            path: config.path.display().to_string(),
            incarnation: now_ns(),
            volume_file: config.volume.to_text(),
        };
        let sessions = Sessions::new(Arc::clone(stack.top()), Arc::clone(stack.clients()), config.lease_term);
        let service = Service::new(identity, Arc::clone(&sessions), &stack);
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_serving::<mortar_proto::pb::brick_server::BrickServer<Service>>().await;
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .build_v1()
            .context("cannot read the description of the protocol")?;
        let handler = dispatch(service.clone().into_server(), health_service, reflection);
        let server = Server::start(listener, config.threads, handler).context("cannot start threads")?;
        info!(brick = config.brick_id, volume = config.volume.name, %address, path = %config.path.display(), "serving");
        Ok(Self { address, service, sessions, stack, server: Some(server) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its layers.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Everything it knows of itself, for people.
    pub fn statedump(&self) -> String {
        self.service.statedump_text()
    }

    /// Stop: what runs runs to its end, clients are told, the connections close.
    pub async fn shutdown(mut self) {
        self.sessions.end_all().await;
        if let Some(server) = self.server.take() {
            server.drain(STOP_WAIT).await;
        }
    }
}

impl Drop for Brick {
    fn drop(&mut self) {
        self.server = None;
        self.sessions.crash();
    }
}

/// A number that is higher in every later life of a brick, if its clock is set; it decides nothing else.
fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Waits a moment for a port that is taken: a brick that was killed just now lets go when the kernel has closed its files.
async fn listen(address: &str) -> Result<TcpListener> {
    let shown = address.to_owned();
    let addresses = address.to_socket_addrs().with_context(|| format!("cannot find the address {shown}"))?;
    let addresses: Vec<_> = addresses.collect();
    let until = Instant::now() + PORT_WAIT;
    loop {
        match TcpListener::bind(&addresses[..]).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                tokio::time::sleep(PORT_POLL).await;
            }
            bound => {
                return bound.with_context(|| format!("cannot listen on {shown} (does another brick run there?)"));
            }
        }
    }
}
