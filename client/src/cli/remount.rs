//! `mount -o remount` of a mounted volume, as mount(8) asks its helper `mount.fuse.mortar` for it.
//!
//! A mounted volume has the type `fuse.mortar`. Without a helper of that name mount(8) asks that of libfuse, where it is installed,
//! and that one takes a remount for a mount.

use std::path::Path;

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, mount_remount};

use super::mount_options::MountOptions;

/// Whether these options change a mount that is there.
pub(super) fn is_wanted<'a>(lists: impl Iterator<Item = &'a str>) -> bool {
    lists.flat_map(|list| list.split(',')).any(|option| option == "remount")
}

/// Change what the kernel takes care of: `ro`, `nosuid` and the like. mount(8) gives all options that shall hold, those of the
/// mount among them; what concerns the connection to the kernel, or us, stays as it is.
pub(super) fn run<'a>(mountpoint: &Path, lists: impl Iterator<Item = &'a str> + Clone) -> Result<()> {
    let options = MountOptions::parse(lists.clone().chain(["sloppy"]))?;
    let mut flags = options.flags;
    if lists.flat_map(|list| list.split(',')).any(|option| option == "bind") {
        flags |= MountFlags::BIND;
    }
    mount_remount(mountpoint, flags, c"").with_context(|| format!("cannot remount {}", mountpoint.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_word_itself_is_a_remount() {
        assert!(is_wanted(["rw,relatime", "user_id=0,remount,ro"].into_iter()));
        assert!(!is_wanted(["ro,x-remount,log-file=/remount"].into_iter()));
    }
}
