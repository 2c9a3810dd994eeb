//! Making bricks, and the checks of a start.

use std::os::unix::fs::PermissionsExt;

use rustix::fs::{XattrFlags, lsetxattr};

use super::*;

fn error_of(path: &Path) -> String {
    let error = Posix::open(path, VOLUME, PosixOptions::default()).unwrap_err().to_string();
    error.strip_prefix(&format!("brick {}: ", path.display())).unwrap().to_owned()
}

#[test]
fn a_new_brick_has_what_glusterfs_wants_to_find() {
    let brick = Brick::new();
    let rows = [
        (".glusterfs", 0o600),
        (".glusterfs/00", 0o700),
        (".glusterfs/ff", 0o700),
        (".glusterfs/00/00", 0o700),
        (".glusterfs/changelogs", 0o600),
        (".glusterfs/changelogs/htime", 0o600),
        (".glusterfs/changelogs/csnap", 0o600),
        (".glusterfs/indices", 0o600),
        (".glusterfs/indices/xattrop", 0o600),
        (".glusterfs/indices/dirty", 0o600),
        (".glusterfs/indices/entry-changes", 0o600),
        (".glusterfs/landfill", 0o755),
        (".glusterfs/unlink", 0o600),
    ];
    for (path, mode) in rows {
        let meta = brick.path(path).metadata().unwrap();
        assert_eq!((path, meta.permissions().mode() & 0o7777), (path, mode));
    }
    let root = brick.path(".glusterfs/00/00/00000000-0000-0000-0000-000000000001");
    assert_eq!(std::fs::read_link(root).unwrap(), Path::new("../../.."));
    let xattrs = brick.xattrs(&brick.path(""));
    assert_eq!(xattrs["trusted.gfid"], ROOT.as_bytes());
    assert_eq!(xattrs["trusted.glusterfs.volume-id"], VOLUME.as_bytes());
}

#[test]
fn what_is_no_brick_of_the_volume_or_served_already_is_not_served() {
    let mut brick = Brick::new();
    let path = brick.path("");
    let path = path.as_path();
    assert_eq!(error_of(path), "another process serves it: stop that one first");
    brick.posix = None;
    let set = |name: &str, value: &[u8]| lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
    assert_eq!(error_of(&brick.path("absent")), "not a directory");
    std::fs::write(brick.path("file"), "").unwrap();
    assert_eq!(error_of(&brick.path("file")), "not a directory");
    set("trusted.glusterfs.volume-id", &[9; 16]);
    let expected = format!("belongs to volume {}, not to {VOLUME}", Uuid::from_bytes([9; 16]));
    assert_eq!(error_of(path), expected);
    set("trusted.glusterfs.volume-id", &[9; 15]);
    assert_eq!(error_of(path), "the volume id is damaged: 15 bytes instead of 16");
    rustix::fs::lremovexattr(path, "trusted.glusterfs.volume-id").unwrap();
    assert_eq!(error_of(path), "not a brick: it has no volume id (is its disk mounted?)");
    set("trusted.glusterfs.volume-id", VOLUME.as_bytes());
    set("trusted.gfid", &[1; 16]);
    assert_eq!(error_of(path), "its gfid is not that of a volume's root: a directory from inside a volume");
    set("trusted.gfid", ROOT.as_bytes());
    let handle = brick.handle(ROOT);
    std::fs::remove_file(&handle).unwrap();
    std::os::unix::fs::symlink("../../../.glusterfs", &handle).unwrap();
    assert_eq!(error_of(path), "the root's handle in .glusterfs leads to another directory");
    std::fs::remove_file(&handle).unwrap();
    Posix::open(path, VOLUME, PosixOptions::default()).unwrap();
    assert_eq!(std::fs::read_link(&handle).unwrap(), Path::new("../../.."));
    std::fs::rename(brick.path(".glusterfs"), brick.path("aside")).unwrap();
    assert_eq!(error_of(path), "half made or damaged: .glusterfs is missing");
}

#[test]
fn a_brick_is_made_only_where_nothing_is() {
    let brick = Brick::new();
    let refusal = |path: PathBuf| create_brick(&path, VOLUME).unwrap_err().to_string();
    assert!(refusal(brick.path("")).ends_with(": is a brick already"));
    let inside = refusal(brick.path("a/b"));
    assert!(inside.contains("/a/b: is inside the brick /"), "{inside}");
    let foreign = tempfile::tempdir().unwrap();
    std::fs::write(foreign.path().join("notes"), "").unwrap();
    assert!(refusal(foreign.path().into()).ends_with(": is not empty: it has notes"));
    std::fs::remove_file(foreign.path().join("notes")).unwrap();
    // As a crash leaves it: the tree without the volume id.
    std::fs::create_dir(foreign.path().join(".glusterfs")).unwrap();
    create_brick(foreign.path(), VOLUME).unwrap();
    Posix::open(foreign.path(), VOLUME, PosixOptions::default()).unwrap();
}
