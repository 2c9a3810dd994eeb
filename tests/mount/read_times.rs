//! Reading changes no times, however a volume is mounted: a brick keeps the times that clients give it, and no client gives one
//! for reading.

use std::fs;
use std::time::Duration;

use mortar_tests::cluster::{Cluster, Shape};

use super::bricks::settle;
use super::cases::play;
use super::{Mounts, within};

const LIMIT: Duration = Duration::from_secs(120);

/// Files that are older than a day, and such that were changed after they were last read: what `relatime` would touch.
const READ: &str = r#"
    mkdir d; echo text > d/old; echo text > d/changed; ln -s old d/link
    touch -d '2001-02-03 04:05:06.123456789' d/old; touch -a -d '2001-01-01 01:01:01.5' d/changed
    times() { stat -c '%n %x %y %z' d d/old d/changed; stat -c '%n %x %y %z' d/link; }
    before="$(times)"
    for at in $N $M; do
        cat $at/d/* > /dev/null; ls -lR $at/d > /dev/null; readlink $at/d/link > /dev/null; dd if=$at/d/old iflag=direct of=/dev/null status=none
        python3 -c 'import mmap, sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); m[:]' $at/d/old
    done
    for at in $M $N; do is "$(cd $at; times)" "$before"; done
    # Whoever sets it by hand has it.
    touch -a -d '2011-11-11 11:11:11.111111111' $N/d/old; is "$(stat -c '%x' d/old | cut -c1-29)" '2011-11-11 11:11:11.111111111'
    is "$(stat -c %y d/old)" "$(echo "$before" | grep d/old | cut -d' ' -f5-7)"
"#;

/// C100
#[test]
fn reading_changes_no_time_under_any_policy() {
    within(LIMIT, "", || {
        for option in ["noatime", "relatime", "atime", "nodiratime"] {
            let options: &'static [&'static str] = Box::leak(Box::new([option]));
            let cluster = Cluster::up_with(Shape { bricks: 3, replica: 3, clients: 2 }, 1 << 30, options).unwrap();
            let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
            let mount = cluster.mount(0).to_str().unwrap();
            let line = table.lines().find(|line| line.split(' ').nth(4) == Some(mount)).expect("it is mounted");
            let flags = line.split(' ').nth(5).expect("its flags");
            // `atime` is what the kernel takes for `relatime`.
            let shown = if option == "atime" { "relatime" } else { option };
            assert!(flags.split(',').any(|flag| flag == shown), "{line}");
            play(&Mounts(vec![cluster.mount(0).into(), cluster.mount(1).into(), cluster.mount(1).into()]), READ);
            settle(&cluster, 3);
        }
    });
}
