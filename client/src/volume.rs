//! Where a volume file comes from: a file on this machine, or any brick of the volume.
//!
//! What it says is in `mortar_proto::volume`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mortar_proto::volume::{DEFAULT_PORT, VOLUME_FILE_BYTES_MAX, VolumeFile};

use crate::remote::control::{self, NoAnswer};

/// What a directory of `mortar up` calls its volume file.
pub const FILE_NAME: &str = "volume.toml";

/// How long one question to a brick may take.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(4);

/// How long to wait before a brick that did not answer is asked again: short against the time a brick takes to start.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// Where the volume file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In a file; for a directory, `volume.toml` in it.
    File(PathBuf),
    /// With a brick, which hands it out.
    Brick {
        /// Host and port.
        address: String,
        /// The name the volume must have.
        volume: String,
    },
}

impl Source {
    /// `FILE`, `DIR` or `HOST[:PORT]:/VOLUME`. What exists on this machine is a file.
    pub fn parse(text: &str) -> Result<Self> {
        let path = Path::new(text);
        if path.is_dir() {
            return Ok(Self::File(path.join(FILE_NAME)));
        }
        let Some((host, volume)) = text.split_once(":/").filter(|_| !path.exists()) else {
            return Ok(Self::File(path.to_owned()));
        };
        ensure!(!host.is_empty() && !volume.is_empty(), "`{text}` is neither a volume file nor HOST[:PORT]:/VOLUME");
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty() && !port.ends_with(']'));
        let address = if has_port { host.to_owned() } else { format!("{host}:{DEFAULT_PORT}") };
        Ok(Self::Brick { address, volume: volume.to_owned() })
    }

    /// Read and check it. A brick must answer within `patience`; it is asked again and again until then.
    pub async fn load(&self, patience: Duration) -> Result<VolumeFile> {
        let (address, volume) = match self {
            Self::File(path) => return read(path),
            Self::Brick { address, volume } => (address, volume),
        };
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match fetch(address, volume, left.min(ANSWER_WITHIN)).await {
                Err(error) if error.downcast_ref::<NoAnswer>().is_some() && left > ASK_EVERY => {
                    tokio::time::sleep(ASK_EVERY).await;
                }
                done => return done,
            }
        }
    }
}

/// Read a volume file of this machine.
pub fn read(path: &Path) -> Result<VolumeFile> {
    let shown = path.display();
    let bytes = fs::metadata(path).with_context(|| format!("cannot read volume file {shown}"))?.len();
    ensure!(bytes <= VOLUME_FILE_BYTES_MAX as u64, "{shown} is no volume file: it has {bytes} bytes");
    let text = fs::read_to_string(path).with_context(|| format!("cannot read volume file {shown}"))?;
    VolumeFile::parse(&text).with_context(|| format!("volume file {shown}"))
}

/// Write a new volume file, whole or not at all. One that is there already is never replaced.
pub fn write_new(path: &Path, file: &VolumeFile) -> Result<()> {
    let shown = path.display();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let draft = folder.join(format!(".{}.new", file.id));
    let written = (|| {
        let mut out = fs::File::create(&draft)?;
        out.write_all(file.to_text().as_bytes())?;
        out.sync_all()?;
        fs::hard_link(&draft, path)
    })();
    fs::remove_file(&draft).ok();
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            bail!("{shown} exists already: give another file name, or remove it if no brick uses it")
        }
        other => other.with_context(|| format!("cannot write volume file {shown}")),
    }
}

async fn fetch(address: &str, volume: &str, patience: Duration) -> Result<VolumeFile> {
    let text = control::volume_file(address, Some(volume), patience)
        .await
        .with_context(|| format!("cannot get the volume file from {address}"))?;
    let file = VolumeFile::parse(&text).with_context(|| format!("the volume file that {address} hands out"))?;
    ensure!(file.name == volume, "{address} serves a brick of volume `{}`, not of `{volume}`", file.name);
    Ok(file)
}

/// A line for each brick that does not answer, or that serves another volume.
pub async fn problems(file: &VolumeFile) -> Vec<String> {
    let asked = file.bricks.iter().map(|brick| async move {
        let problem = match control::volume_file(&brick.address, None, ANSWER_WITHIN).await {
            Err(error) => format!("{error:#}"),
            Ok(text) => match VolumeFile::parse(&text) {
                Err(error) => format!("it hands out a volume file that makes no sense: {error}"),
                Ok(theirs) if theirs.id != file.id => {
                    format!("it serves volume {} (id {}), not this one (id {})", theirs.name, theirs.id, file.id)
                }
                Ok(theirs) if theirs != *file => "it was started with another version of the volume file".to_owned(),
                Ok(_) => return None,
            },
        };
        Some(format!("brick {} at {}: {problem}", brick.id, brick.address))
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_file_or_a_brick() {
        let brick = |address: &str| Source::Brick { address: address.into(), volume: "gv0".into() };
        assert_eq!(Source::parse("host:/gv0").unwrap(), brick("host:24100"));
        assert_eq!(Source::parse("host:7:/gv0").unwrap(), brick("host:7"));
        assert_eq!(Source::parse("[::1]:/gv0").unwrap(), brick("[::1]:24100"));
        assert_eq!(Source::parse("gv0.toml").unwrap(), Source::File("gv0.toml".into()));
        assert!(Source::parse("host:/").is_err() && Source::parse(":/gv0").is_err());
    }

    #[test]
    fn a_directory_stands_for_the_file_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let source = Source::parse(dir.path().to_str().unwrap()).unwrap();
        assert_eq!(source, Source::File(dir.path().join("volume.toml")));
    }
}
