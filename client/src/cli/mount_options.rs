//! The options of `mount -o` and of fstab.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::mount::MountFlags;

use crate::fuse::{Acl, StatMode};

/// What concerns us of `-o`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountOptions {
    /// What mount(2) takes, `RDONLY` among it.
    pub(crate) flags: MountFlags,
    /// Who checks access control lists (the kernel, unless `noacl`).
    pub(crate) acl: Acl,
    /// How exact stat(2) is (`statlite`).
    pub(crate) stat: StatMode,
    /// Wait this long for enough bricks.
    pub(crate) wait: Option<Duration>,
    /// Log levels.
    pub(crate) log: Option<String>,
    /// Log file.
    pub(crate) log_file: Option<PathBuf>,
}

/// What the kernel is told.
const FLAGS: [(&str, MountFlags); 7] = [
    ("ro", MountFlags::RDONLY),
    ("nosuid", MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC),
    ("noatime", MountFlags::NOATIME),
    ("nodiratime", MountFlags::NODIRATIME),
    ("relatime", MountFlags::RELATIME),
];

/// What takes one of them back.
const TAKES_BACK: [(&str, MountFlags); 5] = [
    ("rw", MountFlags::RDONLY),
    ("suid", MountFlags::NOSUID),
    ("dev", MountFlags::NODEV),
    ("exec", MountFlags::NOEXEC),
    ("atime", MountFlags::NOATIME),
];

/// What is for mount(8), for systemd or the default.
const IGNORED: [&str; 12] =
    ["defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "owner", "group", "async", "sloppy"];

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            flags: MountFlags::empty(),
            acl: Acl::Kernel,
            stat: StatMode::Exact,
            wait: None,
            log: None,
            log_file: None,
        }
    }
}

impl MountOptions {
    /// Read lists of options separated by commas. A later option overrules an earlier one.
    pub(crate) fn parse<'a>(lists: impl Iterator<Item = &'a str> + Clone) -> Result<Self> {
        let parts = lists.flat_map(|list| list.split(',')).filter(|part| !part.is_empty());
        let sloppy = parts.clone().any(|part| part == "sloppy");
        let mut options = Self::default();
        for part in parts {
            let (key, value) = part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value)));
            if let (Some((_, flag)), None) = (FLAGS.iter().find(|(name, _)| *name == key), value) {
                options.flags.insert(*flag);
                continue;
            }
            if let (Some((_, flag)), None) = (TAKES_BACK.iter().find(|(name, _)| *name == key), value) {
                options.flags.remove(*flag);
                continue;
            }
            match (key, value) {
                ("acl", None) => options.acl = Acl::Kernel,
                ("noacl", None) => options.acl = Acl::Off,
                ("statlite", None) => options.stat = StatMode::Lazy,
                ("wait", Some(seconds)) => {
                    let seconds = seconds.parse().with_context(|| format!("mount option `{part}`: give seconds"))?;
                    options.wait = Some(Duration::from_secs(seconds));
                }
                ("log" | "log-level", Some(levels)) => options.log = Some(levels.to_owned()),
                ("log-file", Some(path)) => options.log_file = Some(path.into()),
                (other, _) if other.starts_with("x-") || other == "comment" => {}
                (other, None) if IGNORED.contains(&other) => {}
                _ if sloppy => {}
                _ => bail!(
                    "unknown mount option `{part}`: known are {}, noacl, statlite, wait=, log=, log-file=",
                    flag_names()
                ),
            }
        }
        Ok(options)
    }
}

fn flag_names() -> String {
    FLAGS.map(|(name, _)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MountOptions> {
        MountOptions::parse([text].into_iter())
    }

    #[test]
    fn a_line_of_fstab_is_understood() {
        let options =
            parse("_netdev,nofail,x-systemd.automount,ro,nosuid,noatime,noacl,wait=30,log-level=debug").unwrap();
        let wanted = MountOptions {
            flags: MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOATIME,
            acl: Acl::Off,
            stat: StatMode::Exact,
            wait: Some(Duration::from_secs(30)),
            log: Some("debug".into()),
            log_file: None,
        };
        assert_eq!(options, wanted);
        assert_eq!(parse("ro,rw").unwrap().flags, MountFlags::empty());
    }

    #[test]
    fn an_unknown_option_is_named_unless_mount_is_sloppy() {
        assert!(parse("ro,colour=red").unwrap_err().to_string().contains("`colour=red`"));
        assert!(parse("wait=soon").unwrap_err().to_string().contains("`wait=soon`"));
        assert!(parse("sloppy,colour=red").is_ok());
    }
}
