//! POSIX ACLs: kept, enforced for other users, inherited, seen from another mount; and xattrs of every size.

use std::time::Duration;

use super::Judge;
use super::place::Place;
use super::tools::Package;

const LIMIT: Duration = Duration::from_secs(60);

/// A user who is neither owner nor in the group.
const AS_USER: &str =
    "as() { setpriv --reuid 12345 --regid 12345 --clear-groups -- \"$@\"; }; no() { if \"$@\"; then return 1; fi; };";

pub(super) const ACL: Judge = Judge {
    name: "acl",
    about: "ACLs kept, enforced and inherited; xattrs up to 64 KiB",
    packages: &[
        Package { name: "acl", file: "/usr/bin/setfacl" },
        Package { name: "attr", file: "/usr/bin/setfattr" },
        Package { name: "python3", file: "/usr/bin/python3" },
    ],
    crates: &[],
    mounts: 2,
    limit: Duration::from_secs(300),
    run: |place: &Place| {
        let mut report = place.steps(LIMIT, XATTRS)?;
        let acls: Vec<(&str, String)> = ACLS
            .iter()
            .map(|(name, script)| (*name, format!("{{ set +x; }} 2>/dev/null; {AS_USER} set -x; {script}")))
            .collect();
        let acls: Vec<(&str, &str)> = acls.iter().map(|(name, script)| (*name, script.as_str())).collect();
        let more = place.steps(LIMIT, &acls)?;
        report.checks += more.checks;
        report.failures.extend(more.failures);
        Ok(report)
    },
};

const XATTRS: &[(&str, &str)] = &[
    ("an empty file has no xattr to see", "touch x; test -z \"$(getfattr -dm - x)\"; test -z \"$(getfattr -dm - $N/x)\""),
    ("a value comes back", "setfattr -n user.a -v one x; test \"$(getfattr --only-values -n user.a $N/x)\" = one"),
    ("64 KiB", "python3 -c 'import os; os.setxattr(\"x\", \"user.big\", bytes(range(256)) * 256)';
        python3 -c 'import os; assert os.getxattr(os.environ[\"N\"] + \"/x\", \"user.big\") == bytes(range(256)) * 256'"),
    ("XATTR_CREATE and XATTR_REPLACE", "python3 -c '
import os, errno
def refused(code, *words):
    try: os.setxattr(*words)
    except OSError as e: assert e.errno == code, e
    else: raise SystemExit(\"not refused\")
refused(errno.EEXIST, \"x\", \"user.a\", b\"2\", os.XATTR_CREATE)
refused(errno.ENODATA, \"x\", \"user.none\", b\"2\", os.XATTR_REPLACE)
os.setxattr(\"x\", \"user.a\", b\"two\", os.XATTR_REPLACE)
os.setxattr(\"x\", \"user.empty\", b\"\")
assert os.getxattr(\"x\", \"user.empty\") == b\"\"
assert sorted(os.listxattr(os.environ[\"N\"] + \"/x\")) == [\"user.a\", \"user.big\", \"user.empty\"], os.listxattr(\"x\")
os.removexattr(\"x\", \"user.a\")
try: os.getxattr(os.environ[\"N\"] + \"/x\", \"user.a\")
except OSError as e: assert e.errno == errno.ENODATA
else: raise SystemExit(\"still there\")'"),
    ("trusted from root only", "setfattr -n trusted.t -v 1 x; getfattr -n trusted.t $N/x;
        test -z \"$(setpriv --reuid 12345 --regid 12345 --clear-groups getfattr -dm trusted x)\""),
    ("user xattrs of a symlink are refused", "ln -s x l; if setfattr -h -n user.a -v 1 l; then false; fi"),
];

const ACLS: &[(&str, &str)] = &[
    (
        "a named user may read",
        "echo secret > f; chmod 600 f; no as cat f; setfacl -m u:12345:r f; as cat f; as cat $N/f; no as sh -c 'echo > f'",
    ),
    ("the mode shows the mask", "test $(stat -c %a $N/f) = 640; test \"$(getfacl -c $N/f | grep mask)\" = mask::r--"),
    ("chmod narrows the mask", "chmod 600 $N/f; no as cat f; chmod 640 f; as cat $N/f"),
    (
        "removed",
        "setfacl -b f; no as cat f; no as cat $N/f; test -z \"$(getfattr -m - -d f 2>/dev/null | grep posix_acl)\"",
    ),
    (
        "a default is inherited",
        "mkdir d; setfacl -d -m u:12345:rwx,o::- d; touch d/f; mkdir d/s;
        getfacl -c d/f | grep -q '^user:12345:rwx'; getfacl -c $N/d/s | grep -q '^default:user:12345:rwx';
        test $(stat -c %a $N/d/f) = 660",
    ),
    ("a default replaces the umask", "umask 077; touch d/g; test $(stat -c %a $N/d/g) = 660"),
    (
        "inherited from another mount",
        "touch $N/d/h; getfacl -c d/h | grep -q '^user:12345:rwx'; chmod 755 .; setfacl -m u:12345:rwx d; as sh -c 'echo mine > d/h'",
    ),
    (
        "only the owner sets",
        "touch g; chmod 666 g; no as setfacl -m u:12345:rwx g; chown 12345 g; as setfacl -m u:1:r g",
    ),
];
