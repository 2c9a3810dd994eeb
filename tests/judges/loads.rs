//! Programs that make load and check it: fio, dbench, stress-ng.

use std::time::Duration;

use super::Judge;
use super::place::Place;
use super::tools::Package;

const LIMIT: Duration = Duration::from_secs(600);

/// What all of fio's jobs here have in common: data that carries its own checksum.
const FIO_VERIFY: &str =
    "fio --directory=$M --verify=crc32c --verify_fatal=1 --do_verify=1 --output-format=terse --minimal --randrepeat=0";

pub(super) const FIO: Judge = Judge {
    name: "fio",
    about: "fio --verify: sequential, random, direct, mapped, several jobs",
    packages: &[Package { name: "fio", file: "/usr/bin/fio" }],
    crates: &[],
    mounts: 2,
    limit: Duration::from_secs(1200),
    run: |place: &Place| {
        let size = place.size("32M", "256M");
        let job = |options: &str| {
            format!("{FIO_VERIFY} --randseed={} --size={size} {options} > /dev/null; rm -f $M/j.*", place.seed)
        };
        place.steps(
            LIMIT,
            &[
                ("sequential", &job("--name=j --rw=write --bs=128k --ioengine=psync --end_fsync=1")),
                ("random", &job("--name=j --rw=randwrite --bsrange=512-64k --ioengine=psync --fsync=100")),
                ("read and write mixed", &job("--name=j --rw=randrw --bs=4k --ioengine=libaio --iodepth=8")),
                ("O_DIRECT", &job("--name=j --rw=randwrite --bs=4k --direct=1 --ioengine=libaio --iodepth=16")),
                ("mapped", &job("--name=j --rw=randwrite --bs=4k --ioengine=mmap --fsync=1000")),
                ("four jobs", &job("--name=j --numjobs=4 --rw=randwrite --bs=16k --ioengine=psync --group_reporting")),
                ("written here, verified there", &format!("{FIO_VERIFY} --randseed=1 --size={size} --name=j --rw=randwrite --bs=16k --do_verify=0 --filename=shared > /dev/null;
                    fio --directory=$N --verify=crc32c --verify_fatal=1 --randseed=1 --size={size} --name=j --rw=randwrite --bs=16k --verify_only --randrepeat=0 --filename=shared --minimal > /dev/null")),
            ],
        )
    },
};

pub(super) const DBENCH: Judge = Judge {
    name: "dbench",
    about: "the file server load of dbench, eight clients",
    packages: &[Package { name: "dbench", file: "/usr/bin/dbench" }],
    crates: &[],
    mounts: 1,
    limit: Duration::from_secs(600),
    run: |place: &Place| {
        let seconds = place.size(10, 60);
        let mut report = place.steps(
            LIMIT,
            &[
                ("eight clients", &format!("dbench -D . -t {seconds} 8 > $L/said 2>&1 || {{ tail -5 $L/said >&2; false; }}; grep -q ^Throughput $L/said; if grep -i failed $L/said >&2; then exit 1; fi")),
                ("with synchronous directories and files", "dbench -D . -S -s -t 5 2 > $L/sync 2>&1 || { tail -5 $L/sync >&2; false; }; grep -q ^Throughput $L/sync"),
                ("all cleaned up", "rm -rf clients; test -z \"$(ls -A .)\""),
            ],
        )?;
        let said = std::fs::read_to_string(place.scratch.join("said")).unwrap_or_default();
        report.note = said.lines().find(|line| line.starts_with("Throughput")).unwrap_or_default().trim().to_owned();
        Ok(report)
    },
};

/// Stressors of stress-ng that check what they do, and work on files.
const STRESSORS: &str = "access chattr chdir chmod chown copy-file dentry dir dirdeep dirmany fallocate fcntl fiemap filename file-ioctl flock fpunch \
    fsize fstat getdent hdd io iomix link lockf lockofd metamix mmap-skip open readahead rename seek sendfile splice symlink sync-file touch truncate \
    unlink utime verity xattr";

pub(super) const STRESS: Judge = Judge {
    name: "stress",
    about: "the file stressors of stress-ng with --verify, each for some seconds",
    packages: &[Package { name: "stress-ng", file: "/usr/bin/stress-ng" }],
    crates: &[],
    mounts: 1,
    limit: Duration::from_secs(1500),
    run: |place: &Place| {
        let seconds = place.size(2, 10);
        let mut report = super::report::Report::default();
        let known = place.shell("stress-ng --stressors", LIMIT)?;
        for stressor in STRESSORS.split_whitespace() {
            if !known.split_whitespace().any(|name| name == stressor) {
                report.skipped.insert(stressor.to_owned(), "unknown to this stress-ng".to_owned());
                continue;
            }
            // 2: ended by a signal or out of time; 3 and 4: this machine cannot.
            let script = format!(
                "mkdir -p stress; status=0; stress-ng --temp-path stress --verify --seed {} --{stressor} 2 --{stressor}-ops 1000000 \
                 --timeout {seconds} --oom-avoid > $L/said 2>&1 || status=$?; \
                 if test $status != 0 -a $status != 3 -a $status != 4; then grep -E 'fail|error' $L/said | tail -2 >&2; exit 1; fi; rm -rf stress",
                place.seed
            );
            let limit = Duration::from_secs(60 + 2 * seconds);
            report.case(stressor, place.shell(&script, limit));
        }
        Ok(report)
    },
};
