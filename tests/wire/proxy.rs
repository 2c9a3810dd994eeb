//! A network that can be cut: forwards connections to a brick until told otherwise.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinHandle};

/// Forwards connections to a brick.
pub(crate) struct Proxy {
    pub(crate) address: String,
    network: Arc<Network>,
    accepts: JoinHandle<()>,
}

#[derive(Default)]
struct Network {
    links: Mutex<Vec<AbortHandle>>,
    swallow_answers: AtomicBool,
}

impl Proxy {
    pub(crate) async fn before(brick: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let network = Arc::new(Network::default());
        let shared = Arc::clone(&network);
        let accepts = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let link = tokio::spawn(forward(client, brick, Arc::clone(&shared)));
                shared.links.lock().push(link.abort_handle());
            }
        });
        Self { address, network, accepts }
    }

    /// Break every connection; new ones work.
    pub(crate) fn cut(&self) {
        self.network.swallow_answers.store(false, Ordering::SeqCst);
        self.network.links.lock().drain(..).for_each(|link| link.abort());
    }

    /// What the brick says is lost from now on, until the connections are cut.
    pub(crate) fn swallow_answers(&self) {
        self.network.swallow_answers.store(true, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepts.abort();
        self.cut();
    }
}

async fn forward(client: TcpStream, brick: SocketAddr, network: Arc<Network>) {
    let Ok(brick) = TcpStream::connect(brick).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_brick, mut to_brick) = brick.into_split();
    let requests = tokio::io::copy(&mut from_client, &mut to_brick);
    let answers = async {
        let mut buffer = vec![0; 65_536];
        while let Ok(count @ 1..) = from_brick.read(&mut buffer).await {
            let lost = network.swallow_answers.load(Ordering::SeqCst);
            if !lost && to_client.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        _ = requests => {}
        () = answers => {}
    }
}
