//! The process behind a mount: it connects, mounts, says that it is ready, and serves until somebody unmounts.
//!
//! `mortar statedump MNT` asks it over a socket that is named after the number of the mounted device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use mortar_xlators::types::ClientId;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use super::mount::Plan;
use super::process::{RUNTIME_DIR, make_runtime_dir};
use crate::fuse::{KernelCache, Mount, MountConfig};
use crate::{Access, Volume};

/// Threads that serve a mount. A request is cheapest where one thread does all of it: with two on two cores, each
/// wakes the other, which costs a fifth more CPU for an untar. The other half of the cores is the programs' own.
const WORKERS_MAX: usize = 4;

/// Mount and serve until it is unmounted.
pub(super) fn run(plan: &Plan) -> Result<ExitCode> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads((cores / 2).clamp(1, WORKERS_MAX))
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(serve(plan))
}

async fn serve(plan: &Plan) -> Result<ExitCode> {
    let mut interrupted = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
    let mut terminated = signal(SignalKind::terminate()).context("cannot wait for signals")?;
    let began = Instant::now();
    let file = plan.source.load(plan.bricks_within).await?;
    let client = ClientId(Uuid::new_v4().as_u128());
    let cache = KernelCache::new();
    let access = if plan.options.flags.contains(MountFlags::RDONLY) { Access::ReadOnly } else { Access::ReadWrite };
    let volume = Volume::connect(file, access, client, Arc::<KernelCache>::clone(&cache));
    volume.ready(plan.bricks_within.saturating_sub(began.elapsed())).await?;

    let shown = plan.mountpoint.display();
    let mut config = MountConfig::new(&plan.mountpoint, &volume.file().name, client);
    (config.flags, config.acl, config.stat) = (plan.options.flags, plan.options.acl, plan.options.stat);
    let mounted = Mount::start(config, volume.root(), cache).await;
    let mut mount = mounted.with_context(|| format!("cannot mount at {shown}"))?;
    tracing::info!(at = %shown, volume = volume.file().name, client = format_args!("{:032x}", client.0), "mounted");
    let dumps = Dumps::bind(&plan.mountpoint)?;
    sd_notify::notify(&[sd_notify::NotifyState::Ready]).context("cannot say that the mount is ready")?;

    tokio::select! {
        ended = mount.ended() => ended.with_context(|| format!("the mount at {shown} failed"))?,
        () = dumps.answer(&volume) => {}
        _ = interrupted.recv() => end(&mut mount)?,
        _ = terminated.recv() => end(&mut mount)?,
    }
    volume.close().await;
    tracing::info!(at = %shown, "unmounted");
    Ok(ExitCode::SUCCESS)
}

/// Unmount because a signal said so: if programs still use it, they lose it.
fn end(mount: &mut Mount) -> Result<()> {
    match mount.unmount() {
        Err(Errno::BUSY) => {
            tracing::warn!("the mount is still in use, and is gone for its users");
            mount.detach().context("cannot unmount")
        }
        done => done.context("cannot unmount"),
    }
}

/// The socket that `mortar statedump` asks. Its name goes away with it.
#[derive(Debug)]
struct Dumps {
    listener: UnixListener,
    path: PathBuf,
}

impl Dumps {
    fn bind(mountpoint: &Path) -> Result<Self> {
        make_runtime_dir()?;
        let path = socket_of(mountpoint).context("the mount is not in /proc/self/mountinfo")?;
        // What a mount left there that was killed: the number of its device is ours now.
        fs::remove_file(&path).ok();
        let listener = UnixListener::bind(&path).with_context(|| format!("cannot bind {}", path.display()))?;
        Ok(Self { listener, path })
    }

    /// Answer for ever.
    async fn answer(&self, volume: &Volume) {
        loop {
            let Ok((mut asker, _)) = self.listener.accept().await else { continue };
            // Whoever asked may have gone.
            asker.write_all(volume.statedump().as_bytes()).await.ok();
        }
    }
}

impl Drop for Dumps {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
    }
}

/// The socket of the mount at this very path, if one of ours is there. Does not touch the mount itself, which may hang.
pub(super) fn socket_of(mountpoint: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(mountpoint).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let device = device_of(&mounts, path.to_str()?.trim_end_matches('/'))?;
    Some(Path::new(RUNTIME_DIR).join(format!("mount-{}.sock", device.replace(':', "-"))))
}

/// `major:minor` of the uppermost of our mounts at `path`. The file writes a blank as `\040`, and so on.
fn device_of(mounts: &str, path: &str) -> Option<String> {
    let written = path.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011").replace('\n', "\\012");
    let ours = mounts.lines().rev().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let mut fields = fields.split(' ');
        let (device, at) = (fields.nth(2)?, fields.nth(1)?);
        (at == written && kind.starts_with("fuse.mortar ")).then_some(device)
    });
    ours.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uppermost_of_our_mounts_is_found() {
        let mounts = "\
            21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            40 21 0:51 / /mnt/a\\040b rw,nosuid shared:3 - fuse.mortar gv0 rw,user_id=0\n\
            41 21 0:52 / /mnt/other rw - fuse.glusterfs gv0 rw\n\
            42 21 0:53 / /mnt/a\\040b rw shared:4 - fuse.mortar gv0 rw,user_id=0\n";
        assert_eq!(device_of(mounts, "/mnt/a b").as_deref(), Some("0:53"));
        assert_eq!(device_of(mounts, "/mnt/other"), None);
        assert_eq!(device_of(mounts, "/mnt"), None);
    }
}
