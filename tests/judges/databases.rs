//! Databases: they fsync, lock, map and trust what they read.

use std::time::Duration;

use super::Judge;
use super::place::Place;
use super::tools::Package;

const LIMIT: Duration = Duration::from_secs(600);

/// A process that adds rows and moves money between accounts, while others do the same.
const SQLITE_WORKER: &str = r#"
    cat > $L/worker.py <<'END'
import random, sqlite3, sys
path, mode, rows, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rng = random.Random(seed)
db = sqlite3.connect(path, timeout=120, isolation_level=None)
if mode == "wal":
    assert db.execute("pragma journal_mode").fetchone()[0] == "wal"
for i in range(rows):
    db.execute("begin immediate")
    one, other, sum = rng.randrange(100), rng.randrange(100), rng.randrange(50)
    db.execute("update account set money = money - ? where id = ?", (sum, one))
    db.execute("update account set money = money + ? where id = ?", (sum, other))
    db.execute("insert into log values (?, ?, ?)", (seed, i, "x" * rng.randrange(2000)))
    if rng.random() < 0.1:
        db.execute("rollback"); db.execute("begin immediate")
        db.execute("insert into log values (?, ?, ?)", (seed, i, "rolled back once"))
    db.execute("commit")
    if i % 10 == 0:
        assert db.execute("select sum(money) from account").fetchone()[0] == 100000
END
    cat > $L/make.py <<'END'
import sqlite3, sys
db = sqlite3.connect(sys.argv[1]); db.execute("pragma journal_mode=" + sys.argv[2])
db.execute("create table account (id integer primary key, money integer)")
db.execute("create table log (who, i, text)"); db.execute("create index log_i on log (i, who)")
db.executemany("insert into account values (?, 1000)", [(i,) for i in range(100)]); db.commit()
END
"#;

/// Two processes at once, then the books.
const SQLITE_RUN: &str = r#"
    python3 $L/make.py $A/$MODE.db $MODE
    python3 $L/worker.py $A/$MODE.db $MODE $ROWS 1 & one=$!
    python3 $L/worker.py $B/$MODE.db $MODE $ROWS 2 & two=$!
    wait $one; wait $two
    test "$(sqlite3 $A/$MODE.db 'pragma integrity_check')" = ok
    test "$(sqlite3 $A/$MODE.db 'select count(*), count(distinct who) from log')" = "$((ROWS * 2))|2"
    test "$(sqlite3 $A/$MODE.db 'select sum(money) from account')" = 100000
    sqlite3 $A/$MODE.db 'vacuum'; cp $A/$MODE.db $L/copy.db; test "$(sqlite3 $L/copy.db 'pragma integrity_check')" = ok; rm -f $L/copy.db*
"#;

pub(super) const SQLITE: Judge = Judge {
    name: "sqlite",
    about: "two processes in rollback and WAL mode, then PRAGMA integrity_check",
    packages: &[
        Package { name: "sqlite3", file: "/usr/bin/sqlite3" },
        Package { name: "python3", file: "/usr/bin/python3" },
    ],
    crates: &[],
    mounts: 2,
    limit: LIMIT,
    run: |place: &Place| {
        let rows = place.size(100, 500);
        let run = |mode: &str, one: &str, other: &str| {
            format!("MODE={mode} ROWS={rows} A={one} B={other}; mkdir -p $A; {SQLITE_RUN}")
        };
        place.steps(
            LIMIT,
            &[
                ("the programs", SQLITE_WORKER),
                ("rollback mode, one mount", &run("delete", "$M/one", "$M/one")),
                ("WAL mode, one mount", &run("wal", "$M/one", "$M/one")),
                ("another mount reads it", "test \"$(sqlite3 $N/one/delete.db 'pragma integrity_check')\" = ok"),
                // WAL needs shared memory, which sqlite does not promise between machines: rollback mode only.
                ("rollback mode, two mounts", &run("delete", "$M/two", "$N/two")),
                ("persist mode, two mounts", &run("persist", "$M/three", "$N/three")),
            ],
        )
    },
};

/// Debian keeps the server's programs out of the path, by version.
const POSTGRES_SETUP: &str = r#"
    bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
    as() { setpriv --reuid postgres --regid postgres --init-groups -- env HOME=$L "$@"; }
    start() { as $bin/pg_ctl -D $D -w -t 120 -l $L/postgres/log -o "-c listen_addresses= -k $L/postgres" start > /dev/null; }
    stop() { as $bin/pg_ctl -D $D -w -t 120 -m $1 stop > /dev/null; }
    sql() { as psql -h $L/postgres -qAt -d "${2:-bench}" -c "$1"; }
    D=$M/pg/data
"#;

pub(super) const POSTGRES: Judge = Judge {
    name: "postgres",
    about: "PostgreSQL: initdb, pgbench, restart, kill and recovery, dump",
    packages: &[Package { name: "postgresql", file: "/usr/bin/psql" }],
    crates: &[],
    mounts: 2,
    limit: Duration::from_secs(900),
    run: |place: &Place| {
        let (seconds, scale) = place.size((10, 1), (60, 5));
        let accounts = scale * 100_000;
        let steps = [
            ("initdb", "mkdir -p $M/pg $L/postgres; chown postgres $M/pg $L/postgres; as $bin/initdb -D $D -A trust --data-checksums > /dev/null".to_owned()),
            ("start", "start; sql 'create database bench' postgres".to_owned()),
            ("fill", format!("as $bin/pgbench -h $L/postgres -i -s {scale} -q bench")),
            ("pgbench", format!("as $bin/pgbench -h $L/postgres -c 4 -j 2 -T {seconds} bench; sql 'select count(*) > 0 from pgbench_history' | grep -qx t")),
            ("books agree", "test \"$(sql 'select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)')\" = t".to_owned()),
            ("vacuum, reindex, checksum", "sql 'vacuum full'; sql 'reindex database bench'; sql 'checkpoint'".to_owned()),
            ("restart", format!("stop fast; as $bin/pg_checksums -D $D --check > /dev/null; start; test $(sql 'select count(*) from pgbench_accounts') = {accounts}")),
            ("kill during work and recover", "( as $bin/pgbench -n -h $L/postgres -c 4 -j 2 -T 20 bench > /dev/null 2>&1 || true ) & sleep 4; stop immediate; wait; start;
                test \"$(sql 'select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)')\" = t".to_owned()),
            ("a move to another mount", format!("stop fast; D=$N/pg/data; start; test $(sql 'select count(*) from pgbench_accounts') = {accounts}; stop fast")),
            ("checksums at the end", "as $bin/pg_checksums -D $D --check > /dev/null".to_owned()),
        ];
        let steps: Vec<(&str, String)> =
            steps.iter().map(|(name, script)| (*name, format!("{POSTGRES_SETUP} {script}"))).collect();
        let steps: Vec<(&str, &str)> = steps.iter().map(|(name, script)| (*name, script.as_str())).collect();
        let report = place.steps(LIMIT, &steps);
        // Whatever went wrong, the server must not outlive the judge.
        let _ = place.shell(&format!("{POSTGRES_SETUP} stop immediate || true"), Duration::from_secs(60));
        report
    },
};
