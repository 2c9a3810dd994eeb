//! The command line from outside: what is printed, what fails with which line, and that nothing is lost by failing.
//!
//! Runs the programs `mortar` and `brickd` as a person would. Needs root.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use mortar_tests::bench;
use tempfile::TempDir;

/// The directory of the programs, which are built before the first test asks for them.
fn programs() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        bench::mortar::build().unwrap();
        bench::mortar::folder().unwrap()
    })
}

fn mortar() -> Command {
    Command::new(programs().join("mortar"))
}

fn brickd() -> Command {
    Command::new(programs().join("brickd"))
}

fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// The command fails, with exactly one line that has all these words in it.
#[track_caller]
fn fails(command: &mut Command, words: &[&str]) {
    let output = run(command);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{command:?} did not fail; it said {said}");
    assert_eq!(said.lines().count(), 1, "one line, not {said:?}");
    for word in words {
        assert!(said.contains(word), "{said:?} should say {word:?}");
    }
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let output = run(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("mortar-cli-").tempdir().unwrap()
}

/// A volume of `mortar up`, which is taken down in the end.
struct Up {
    dir: TempDir,
}

impl Up {
    fn new(arguments: &[&str]) -> Self {
        let up = Self { dir: scratch() };
        up.start(arguments);
        up
    }

    fn start(&self, arguments: &[&str]) -> String {
        succeeds(self.command(arguments))
    }

    /// Its processes keep our output open if they inherit it, so this also shows that they do not.
    fn command(&self, arguments: &[&str]) -> &mut Command {
        let mut up = mortar();
        up.arg("up").arg(self.path()).args(arguments).arg("--detach");
        Box::leak(Box::new(up))
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("volume")
    }

    fn mnt(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    fn down(&self) {
        succeeds(mortar().arg("down").arg(self.path()));
    }

    /// The address of a brick.
    fn address(&self, index: usize) -> String {
        let text = fs::read_to_string(self.path().join("volume.toml")).unwrap();
        mortar_proto::volume::VolumeFile::parse(&text).unwrap().bricks[index].address.clone()
    }

    fn pid(&self, name: &str) -> i32 {
        fs::read_to_string(self.path().join(format!("run/{name}.pid"))).unwrap().trim().parse().unwrap()
    }

    fn kill_brick(&self, index: usize) {
        let pid = rustix::process::Pid::from_raw(self.pid(&format!("brick-{index}"))).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        run(mortar().arg("down").arg(self.path()));
    }
}

/// A volume file of one brick at `dir/brick`, on a free port; its path and the address.
fn one_brick(dir: &Path) -> (PathBuf, String) {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let file = dir.join("v.toml");
    let brick = format!("{address}:{}", dir.join("brick").display());
    succeeds(mortar().args(["volume", "create", "v", &brick, "--output"]).arg(&file));
    (file, address)
}

fn brick_command(dir: &Path, file: &Path, address: &str) -> Command {
    let mut command = brickd();
    command.arg(dir.join("brick")).arg("--volume").arg(file).args(["--listen", address, "--log", "error"]);
    command
}

#[test]
fn an_unknown_key_of_a_volume_file_is_named() {
    let dir = scratch();
    let (file, address) = one_brick(dir.path());
    let text = fs::read_to_string(&file).unwrap().replace("replica = 1", "replica = 1\nreplcia = 3");
    fs::write(&file, text).unwrap();
    fails(mortar().args(["volume", "check"]).arg(&file), &["mortar: volume file", "unknown field `replcia`"]);
    fails(mortar().arg("status").arg(&file), &["unknown field `replcia`"]);
    fails(mortar().arg("mount").arg(&file).arg(dir.path()), &["unknown field `replcia`"]);
    fails(brick_command(dir.path(), &file, &address).arg("--create"), &["brickd: ", "unknown field `replcia`"]);
}

#[test]
fn a_wrong_number_of_bricks_says_which_would_do() {
    let dir = scratch();
    let bricks = ["a:/x", "b:/x", "c:/x", "d:/x"];
    let mut create = mortar();
    create.current_dir(dir.path()).args(["volume", "create", "v", "--replica", "3"]).args(bricks);
    fails(&mut create, &["4 bricks", "`replica = 3`", "3 or 6 bricks"]);
    assert!(!dir.path().join("v.toml").exists());
    let up = dir.path().join("up");
    fails(mortar().arg("up").arg(&up).args(["--bricks", "4", "--replica", "3"]), &["4 bricks", "3 or 6 bricks"]);
}

#[test]
fn a_volume_file_is_never_overwritten() {
    let dir = scratch();
    let (file, _) = one_brick(dir.path());
    let before = fs::read(&file).unwrap();
    fails(mortar().args(["volume", "create", "v", "h:/x", "--output"]).arg(&file), &["exists already"]);
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn a_brick_of_another_volume_is_refused_and_left_alone() {
    let up = Up::new(&["--bricks", "1", "--replica", "1"]);
    up.down();
    let brick = up.path().join("bricks/0");
    fs::write(brick.join("kept"), "kept").unwrap();
    let theirs = scratch();
    let (file, address) = one_brick(theirs.path());
    let text = fs::read_to_string(&file).unwrap();
    let ours = text.replace(theirs.path().join("brick").to_str().unwrap(), brick.to_str().unwrap());
    fs::write(&file, ours).unwrap();
    for create in [&[][..], &["--create"]] {
        let mut command = brickd();
        command.arg(&brick).arg("--volume").arg(&file).args(["--listen", &address, "--log", "error"]).args(create);
        fails(&mut command, &["brickd: ", "belongs to volume"]);
    }
    assert_eq!(fs::read(brick.join("kept")).unwrap(), b"kept");
    up.start(&[]);
}

#[test]
fn a_directory_that_is_no_brick_is_refused() {
    let dir = scratch();
    let (file, address) = one_brick(dir.path());
    fails(&mut brick_command(dir.path(), &file, &address), &["brickd: "]);
    fs::create_dir(dir.path().join("brick")).unwrap();
    fails(&mut brick_command(dir.path(), &file, &address), &["brickd: ", "no volume id"]);
    fs::write(dir.path().join("brick/data"), "somebody's").unwrap();
    fails(brick_command(dir.path(), &file, &address).arg("--create"), &["brickd: ", "empty"]);
    assert_eq!(fs::read(dir.path().join("brick/data")).unwrap(), b"somebody's");
}

#[test]
fn a_file_system_without_xattrs_is_refused() {
    let dir = scratch();
    let (file, address) = one_brick(dir.path());
    let disk = dir.path().join("brick");
    fs::create_dir(&disk).unwrap();
    succeeds(Command::new("mount").args(["-t", "ramfs", "none"]).arg(&disk));
    let refused = std::panic::catch_unwind(|| {
        fails(brick_command(dir.path(), &file, &address).arg("--create"), &["brickd: ", "extended attributes"]);
    });
    succeeds(Command::new("umount").arg(&disk));
    refused.unwrap();
}

#[test]
fn a_port_in_use_is_named() {
    let dir = scratch();
    let (file, address) = one_brick(dir.path());
    let _taken = TcpListener::bind(&address).unwrap();
    fails(brick_command(dir.path(), &file, &address).arg("--create"), &["brickd: ", &address, "in use"]);
}

#[test]
fn a_brick_that_does_not_start_stops_everything_else() {
    let up = Up::new(&[]);
    up.down();
    let taken = TcpListener::bind(up.address(4)).unwrap();
    fails(up.command(&[]), &["mortar: brick-4: ", &up.address(4), "in use"]);
    let running = fs::read_dir(up.path().join("run")).unwrap().flatten();
    let left: Vec<_> = running.filter(|entry| entry.file_name().to_string_lossy().ends_with(".pid")).collect();
    assert!(left.is_empty(), "{left:?} are left");
    drop(taken);
    up.start(&[]);
}

#[test]
fn a_wrong_volume_name_fails_at_once_and_leaves_no_mount() {
    let up = Up::new(&["--bricks", "1", "--replica", "1"]);
    fs::create_dir(up.mnt()).unwrap();
    let began = Instant::now();
    let source = format!("{}:/nope", up.address(0));
    fails(mortar().arg("mount").arg(source).arg(up.mnt()), &["gv0", "nope"]);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(fs::read_dir(up.mnt()).unwrap().count(), 0);
}

#[test]
fn a_volume_without_bricks_fails_in_time_and_leaves_no_mount() {
    let dir = scratch();
    let (file, address) = one_brick(dir.path());
    let began = Instant::now();
    fails(mortar().arg("mount").arg(&file).arg(dir.path()).args(["--wait", "1"]), &["too few bricks", &address]);
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(dir.path().to_str().unwrap()));
}

#[test]
fn a_volume_whose_first_brick_is_down_is_mounted() {
    let up = Up::new(&["--bricks", "3"]);
    fs::create_dir(up.mnt()).unwrap();
    let source = format!("{}:/gv0", up.address(1));
    up.kill_brick(0);
    let log = up.dir.path().join("mount.log");
    for source in [up.path().into_os_string(), source.into()] {
        succeeds(mortar().arg("mount").arg(source).arg(up.mnt()).arg("--log-file").arg(&log));
        fs::write(up.mnt().join("file"), "content").unwrap();
        assert_eq!(fs::read(up.mnt().join("file")).unwrap(), b"content");
        succeeds(mortar().arg("umount").arg(up.mnt()));
    }
}

#[test]
fn a_mount_says_which_server_it_cannot_reach_and_leaves_no_mount() {
    let dir = scratch();
    let began = Instant::now();
    let mut command = mortar();
    command.args(["mount", "no-such-host.invalid:/gv0"]).arg(dir.path()).args(["--wait", "1"]);
    fails(&mut command, &["no-such-host.invalid"]);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(dir.path().to_str().unwrap()));
}

#[test]
fn what_was_written_is_there_after_down_and_up() {
    let mnt = scratch();
    let at = mnt.path().join("m");
    let mount = ["--mount", at.to_str().unwrap()];
    let up = Up::new(&mount);
    fs::write(at.join("hello"), "world").unwrap();
    fails(up.command(&[]), &["is up already", "mortar down"]);
    up.down();
    assert!(!at.join("hello").exists());
    fails(up.command(&["--replica", "2"]), &["--replica 2", "has 3"]);
    up.start(&mount);
    assert_eq!(fs::read(at.join("hello")).unwrap(), b"world");
    up.down();
}

#[test]
fn each_client_of_up_has_a_mount_and_sees_the_others() {
    let mnt = scratch();
    let at = mnt.path().join("m");
    let up = Up::new(&["--mount", at.to_str().unwrap(), "--clients", "3"]);
    fs::write(mnt.path().join("m-1/file"), "from 1").unwrap();
    assert_eq!(fs::read(mnt.path().join("m-3/file")).unwrap(), b"from 1");
    let dump = succeeds(mortar().arg("statedump").arg(mnt.path().join("m-2")));
    assert!(dump.contains("gv0-replicate-1"), "{dump}");
    succeeds(mortar().arg("umount").arg(mnt.path().join("m-2")));
    fails(mortar().arg("umount").arg(mnt.path().join("m-2")), &["nothing is mounted"]);
    up.down();
}

#[test]
fn a_mount_by_host_and_name_works_like_one_by_file() {
    let up = Up::new(&["--bricks", "3"]);
    fs::create_dir(up.mnt()).unwrap();
    let source = format!("{}:/gv0", up.address(1));
    let log = format!("_netdev,log-file={}", up.dir.path().join("mount.log").display());
    succeeds(mortar().arg("mount").arg(source).arg(up.mnt()).args(["-o", &log]));
    fs::write(up.mnt().join("file"), "content").unwrap();
    fails(mortar().arg("umount").arg(up.mnt().join("file")), &["nothing is mounted"]);
    succeeds(mortar().arg("umount").arg(up.mnt()));
    let helper = up.dir.path().join("mount.mortar");
    std::os::unix::fs::symlink(programs().join("mortar"), &helper).unwrap();
    let options = format!("ro,{log}");
    succeeds(Command::new(&helper).arg(up.path()).arg(up.mnt()).args(["-o", &options]));
    assert_eq!(fs::read(up.mnt().join("file")).unwrap(), b"content");
    let refused = fs::write(up.mnt().join("file"), "other").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    succeeds(mortar().arg("umount").arg(up.mnt()));
}

/// mount(8) gives all options that hold, those of the connection to the kernel among them.
#[test]
fn a_mount_is_made_read_only_and_writable_again() {
    let up = Up::new(&["--bricks", "1", "--replica", "1"]);
    fs::create_dir(up.mnt()).unwrap();
    let log = up.dir.path().join("mount.log");
    succeeds(mortar().arg("mount").arg(up.path()).arg(up.mnt()).arg("--log-file").arg(log));
    let helper = up.dir.path().join("mount.fuse.mortar");
    std::os::unix::fs::symlink(programs().join("mortar"), &helper).unwrap();
    let remount = |change: &str| {
        let options = format!("rw,nosuid,relatime,user_id=0,group_id=0,default_permissions,max_read=1048576,{change}");
        succeeds(Command::new(&helper).arg("gv0").arg(up.mnt()).args(["-o", &options]));
    };
    remount("remount,ro");
    let refused = fs::write(up.mnt().join("file"), "text").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    remount("remount,rw");
    fs::write(up.mnt().join("file"), "text").unwrap();
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(up.mnt().to_str().unwrap())).unwrap();
    assert!(line.contains("rw,nosuid,relatime"), "{line}");
    succeeds(mortar().arg("umount").arg(up.mnt()));
}

#[test]
fn status_fails_when_a_brick_is_down() {
    let up = Up::new(&["--bricks", "3"]);
    let said = succeeds(mortar().arg("status").arg(up.path()));
    assert!(said.contains("3 of 3 bricks up"), "{said}");
    let json = succeeds(mortar().arg("status").arg(up.path()).arg("--json"));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["bricks"][2]["status"]["pid"], up.pid("brick-2"));
    up.kill_brick(1);
    let output = run(mortar().arg("status").arg(up.path()));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success() && said.contains("2 of 3 bricks up") && said.contains("DOWN"), "{said}");
    let dump = run(mortar().arg("statedump").arg(up.path()));
    assert!(!dump.status.success() && String::from_utf8(dump.stdout).unwrap().contains("brick gv0-client-2"));
}

#[test]
fn a_mount_whose_process_died_is_replaced() {
    let mnt = scratch();
    let at = mnt.path().join("m");
    let up = Up::new(&["--bricks", "1", "--replica", "1", "--mount", at.to_str().unwrap()]);
    fs::write(at.join("file"), "content").unwrap();
    let pid = rustix::process::Pid::from_raw(up.pid("mount-1")).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    while fs::metadata(&at).is_ok() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let log = mnt.path().join("log");
    succeeds(mortar().arg("mount").arg(up.path()).arg(&at).arg("--log-file").arg(&log));
    assert_eq!(fs::read(at.join("file")).unwrap(), b"content");
    fails(mortar().arg("mount").arg(up.path()).arg(&at), &["is mounted at", "already"]);
    succeeds(mortar().arg("umount").arg(&at));
}

#[test]
fn ctrl_c_stops_the_mount_and_the_bricks() {
    let mnt = scratch();
    let at = mnt.path().join("m");
    let dir = mnt.path().join("volume");
    let mut command = mortar();
    command.arg("up").arg(&dir).args(["--bricks", "3", "--mount"]).arg(&at);
    let mut up = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(up.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("Running until Ctrl-C")));
    fs::write(at.join("file"), "content").unwrap();
    let pid = rustix::process::Pid::from_child(&up);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(said.any(|line| line.unwrap().contains("the data is kept")));
    assert!(up.wait().unwrap().success());
    assert!(!at.join("file").exists());
    let left: Vec<_> = fs::read_dir(dir.join("run")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"]);
}
