//! Names that no file can have: the client knows that by itself.

use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

use mortar_tests::cluster::Cluster;
use rustix::io::Errno;

use super::counts::calls;
use super::within;

const LIMIT: Duration = Duration::from_secs(120);

/// C045
#[test]
fn a_name_that_is_too_long_is_refused_without_asking_a_brick() {
    within(LIMIT, "", || {
        let cluster = Cluster::up(3, 3, 2).unwrap();
        fs::create_dir(cluster.mount(0).join("d")).unwrap();
        fs::write(cluster.mount(0).join("d/f"), "text").unwrap();
        // The second mount knows the directory, so that only the long names could be asked for.
        assert_eq!(fs::read_dir(cluster.mount(1).join("d")).unwrap().count(), 1);
        assert_eq!(fs::read(cluster.mount(1).join("d/f")).unwrap(), b"text");
        let long = cluster.mount(1).join("d").join("x".repeat(300));
        let before = calls(&cluster);
        let lines = cluster.logged("");
        assert!(before.keys().any(|(_, fop)| fop == "Lookup"), "{before:?}");
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        refused(fs::metadata(&long));
                        refused(fs::write(&long, "text"));
                        refused(fs::create_dir(&long));
                        refused(fs::remove_file(&long));
                        refused(fs::rename(cluster.mount(1).join("d/f"), &long));
                        refused(fs::hard_link(cluster.mount(1).join("d/f"), &long));
                    }
                });
            }
        });
        let after = calls(&cluster);
        let more = |key| after.get(key).copied().unwrap_or(0) - before.get(key).copied().unwrap_or(0);
        // Leases may run out and be asked for anew meanwhile; that does not grow with the number of names.
        let asked: Vec<_> = after.keys().filter(|key| more(key) > 10).collect();
        assert!(asked.is_empty(), "{asked:?}");
        assert!(cluster.logged("") < lines + 10, "{}", cluster.log_tails());
    });
}

fn refused<T>(outcome: io::Result<T>) {
    assert_eq!(outcome.err().and_then(|error| Errno::from_io_error(&error)), Some(Errno::NAMETOOLONG));
}
