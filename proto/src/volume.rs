//! The volume file: which bricks make a volume, and when that makes no sense.
//!
//! A client reads it to build its graph, a brick to know who it is and to hand it out, so it is here and not in either.
//! Every problem is one line that names the key or the count, and says what to do.
//!
//! Invariant: a [`VolumeFile`] that [`VolumeFile::parse`] or [`VolumeFile::create`] gave has complete sets of bricks,
//! and no two bricks share an id, an address or a path on one host.

use std::collections::HashSet;

use mortar_xlators::graph::{BrickSpec, Quorum, Spec};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The port of a brick whose address names none (that of GlusterFS bricks is 49152 and up, so both can run).
pub const DEFAULT_PORT: u16 = 24_100;

/// The most bricks in a volume: the graph, the sessions and the pending keys of a set stay small enough to be looked at.
pub const BRICKS_MAX: usize = 4096;

/// The most copies in a set; each has a pending xattr of its own on the others.
pub const REPLICA_MAX: u32 = 16;

/// The longest volume file, in bytes.
pub const VOLUME_FILE_BYTES_MAX: usize = 1 << 20;

/// What a volume is made of, as it stands in its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeFile {
    /// What people call it; `HOST:/NAME` mounts it.
    pub name: String,
    /// Its identity, which every brick carries in `trusted.glusterfs.volume-id`.
    pub id: Uuid,
    /// How many copies of each file, so how many bricks in a row make a set.
    #[serde(default = "one")]
    pub replica: u32,
    /// The last brick of each set keeps names and attributes only.
    #[serde(default, skip_serializing_if = "is_false")]
    pub arbiter: bool,
    /// How many copies must take part in a change.
    #[serde(default, skip_serializing_if = "is_default")]
    pub quorum: Quorum,
    /// The bricks, set by set; their order decides where files are.
    #[serde(rename = "brick", default)]
    pub bricks: Vec<BrickEntry>,
}

/// One `[[brick]]` of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrickEntry {
    /// Its identity in pending marks, such as `gv0-client-2`: assigned once, kept when bricks are added or replaced.
    pub id: String,
    /// Host and port.
    pub address: String,
    /// The directory on that host.
    pub path: String,
}

/// A volume file that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeError(String);

impl std::fmt::Display for VolumeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for VolumeError {}

type Result<T> = std::result::Result<T, VolumeError>;

fn wrong<T>(line: impl Into<String>) -> Result<T> {
    Err(VolumeError(line.into()))
}

fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde hands over references
fn is_false(value: &bool) -> bool {
    !value
}

fn is_default(quorum: &Quorum) -> bool {
    *quorum == Quorum::default()
}

impl VolumeFile {
    /// Read and check the text of a volume file.
    pub fn parse(text: &str) -> Result<Self> {
        let file: Self = toml::from_str(text).map_err(|error| syntax(text, &error))?;
        file.check()?;
        Ok(file)
    }

    /// A new volume of these bricks, given as `HOST[:PORT]:/PATH`.
    pub fn create(name: &str, id: Uuid, shape: Shape, bricks: &[String]) -> Result<Self> {
        let mut entries = Vec::with_capacity(bricks.len());
        for (index, text) in bricks.iter().enumerate() {
            let (address, path) = split_brick(text)?;
            entries.push(BrickEntry { id: format!("{name}-client-{index}"), address, path });
        }
        let Shape { replica, arbiter, quorum } = shape;
        let file = Self { name: name.to_owned(), id, replica, arbiter, quorum, bricks: entries };
        file.check()?;
        Ok(file)
    }

    /// The text of the file.
    pub fn to_text(&self) -> String {
        let body = toml::to_string(self).expect("strings, numbers and one list of tables always make TOML");
        format!(
            "# A Mortar volume. The order of the bricks decides where files are: never change it by hand.\n\n{body}"
        )
    }

    /// The copies of each file: sets of bricks, in order.
    pub fn sets(&self) -> impl ExactSizeIterator<Item = &[BrickEntry]> {
        self.bricks.chunks_exact(self.replica as usize)
    }

    /// Whether brick number `index` keeps names and attributes only.
    pub fn is_arbiter(&self, index: usize) -> bool {
        self.arbiter && (index + 1).is_multiple_of(self.replica as usize)
    }

    /// The brick as the graph has it.
    pub fn brick_spec(&self, index: usize) -> BrickSpec {
        let BrickEntry { id, address, path } = self.bricks[index].clone();
        BrickSpec { id, address, path, arbiter: self.is_arbiter(index) }
    }

    /// The ids of the bricks in the set of brick number `index`, itself included.
    pub fn set_of(&self, index: usize) -> impl Iterator<Item = &str> {
        let copies = self.replica as usize;
        let first = index - index % copies;
        self.bricks[first..first + copies].iter().map(|brick| brick.id.as_str())
    }

    /// The graph of a client.
    pub fn spec(&self) -> Spec {
        let copies = self.replica as usize;
        let mut sets: Vec<Spec> = (0..self.bricks.len() / copies).map(|set| self.set_spec(set, copies)).collect();
        let names = if sets.len() == 1 {
            sets.remove(0)
        } else {
            Spec::Distribute { name: format!("{}-dht", self.name), sets }
        };
        Spec::Cache { next: Box::new(names) }
    }

    /// The names are those of GlusterFS, because link files on the bricks contain them.
    fn set_spec(&self, set: usize, copies: usize) -> Spec {
        let bricks: Vec<BrickSpec> = (set * copies..(set + 1) * copies).map(|index| self.brick_spec(index)).collect();
        let name = if copies == 1 { bricks[0].id.clone() } else { format!("{}-replicate-{set}", self.name) };
        Spec::Replicate { name, bricks, quorum: self.quorum }
    }

    fn check(&self) -> Result<()> {
        check_name("name", &self.name)?;
        if self.id.is_nil() {
            return wrong("`id` is all zero: give the volume an id of its own, such as `uuidgen` prints");
        }
        self.check_counts()?;
        let mut ids = HashSet::new();
        let mut addresses = HashSet::new();
        let mut places = HashSet::new();
        for brick in &self.bricks {
            brick.check()?;
            let host = brick.address.rsplit_once(':').map_or("", |(host, _)| host);
            if !ids.insert(&brick.id) {
                return wrong(format!("two bricks have the id `{}`: every brick needs its own", brick.id));
            }
            if !addresses.insert(&brick.address) {
                return wrong(format!("two bricks have the address {}: give one another port", brick.address));
            }
            if !places.insert((host, &brick.path)) {
                return wrong(format!("two bricks are at {host}:{}: every brick needs its own directory", brick.path));
            }
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<()> {
        let (count, replica) = (self.bricks.len(), self.replica);
        if !(1..=REPLICA_MAX).contains(&replica) {
            return wrong(format!("`replica = {replica}`: there can be 1 to {REPLICA_MAX} copies"));
        }
        if self.arbiter && replica != 3 {
            return wrong(format!("`arbiter = true` needs `replica = 3` (two copies and the arbiter), not {replica}"));
        }
        if let Quorum::Fixed(needed) = self.quorum
            && !(1..=replica).contains(&needed)
        {
            return wrong(format!("`quorum` asks for {needed} of {replica} copies: give 1 to {replica}"));
        }
        if count == 0 {
            return wrong("there is no brick: add at least one `[[brick]]`");
        }
        if count > BRICKS_MAX {
            return wrong(format!("{count} bricks are too many: there can be {BRICKS_MAX}"));
        }
        let copies = replica as usize;
        if !count.is_multiple_of(copies) {
            let less = count - count % copies;
            let fewer = if less == 0 { String::new() } else { format!("{less} or ") };
            return wrong(format!(
                "{count} bricks do not make whole sets of `replica = {replica}`: give {fewer}{} bricks, or another replica count",
                less + copies
            ));
        }
        Ok(())
    }
}

/// What all sets of a volume have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many copies.
    pub replica: u32,
    /// The last of each set keeps names and attributes only.
    pub arbiter: bool,
    /// When a change holds.
    pub quorum: Quorum,
}

impl BrickEntry {
    fn check(&self) -> Result<()> {
        check_name("brick id", &self.id)?;
        let port = self.address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            return wrong(format!("brick {}: `address = \"{}\"` is not HOST:PORT", self.id, self.address));
        }
        if !self.path.starts_with('/') || self.path.contains('\0') {
            return wrong(format!("brick {}: `path = \"{}\"` must begin with `/`", self.id, self.path));
        }
        Ok(())
    }
}

/// Names end up in xattr names, file names and logs, so they are plain.
fn check_name(what: &str, name: &str) -> Result<()> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > 200 || !name.bytes().all(plain) || name.starts_with(['-', '.']) {
        return wrong(format!(
            "the {what} `{}` will not do: use 1 to 200 letters, digits, `-`, `_` and `.`, not beginning with `-` or `.`",
            name.escape_debug()
        ));
    }
    Ok(())
}

/// `HOST[:PORT]:/PATH` as address and path. An IPv6 host stands in brackets.
fn split_brick(text: &str) -> Result<(String, String)> {
    let Some(at) = text.find(":/") else {
        return wrong(format!("`{text}` is not HOST[:PORT]:/PATH"));
    };
    let (host, path) = (&text[..at], &text[at + 1..]);
    if host.is_empty() {
        return wrong(format!("`{text}` names no host: write HOST[:PORT]:/PATH"));
    }
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty() && !port.ends_with(']'));
    let address = if has_port { host.to_owned() } else { format!("{host}:{DEFAULT_PORT}") };
    let bare = path.trim_end_matches('/');
    Ok((address, if bare.is_empty() { "/" } else { bare }.to_owned()))
}

/// One line, with the number of the line in the file.
fn syntax(text: &str, error: &toml::de::Error) -> VolumeError {
    let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    match error.span() {
        Some(span) => {
            let line = text.as_bytes()[..span.start.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1;
            VolumeError(format!("line {line}: {message}"))
        }
        None => VolumeError(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(replica: u32) -> Shape {
        Shape { replica, arbiter: false, quorum: Quorum::Auto }
    }

    fn bricks(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("host{n}:/disks/a")).collect()
    }

    fn line(text: &str) -> String {
        VolumeFile::parse(text).expect_err("the text is wrong").to_string()
    }

    const HEAD: &str = "name = \"gv0\"\nid = \"9a6a3a34-2f38-4c4a-bf0d-5f6f3c6f4d11\"\n";

    #[test]
    fn what_was_written_is_read_back() {
        let shape = Shape { replica: 3, arbiter: true, quorum: Quorum::Fixed(2) };
        let file = VolumeFile::create("gv0", Uuid::new_v4(), shape, &bricks(6)).unwrap();
        assert_eq!(VolumeFile::parse(&file.to_text()), Ok(file.clone()));
        assert_eq!(file.bricks[4].id, "gv0-client-4");
        assert_eq!(file.bricks[4].address, "host4:24100");
        assert!(file.is_arbiter(5) && !file.is_arbiter(4));
        assert_eq!(file.set_of(4).collect::<Vec<_>>(), ["gv0-client-3", "gv0-client-4", "gv0-client-5"]);
    }

    #[test]
    fn sets_are_named_as_gluster_names_them() {
        let names = |replica, count| {
            let spec = VolumeFile::create("gv0", Uuid::new_v4(), shape(replica), &bricks(count)).unwrap().spec();
            let Spec::Cache { next } = spec else { panic!("{spec:?} on top") };
            match *next {
                Spec::Distribute { name, sets } => {
                    let inner = sets.iter().map(|set| match set {
                        Spec::Replicate { name, .. } => name.clone(),
                        other => panic!("{other:?} below distribute"),
                    });
                    [name].into_iter().chain(inner).collect::<Vec<_>>().join(" ")
                }
                Spec::Replicate { name, .. } => name,
                other => panic!("{other:?} below the cache"),
            }
        };
        assert_eq!(names(3, 6), "gv0-dht gv0-replicate-0 gv0-replicate-1");
        assert_eq!(names(1, 2), "gv0-dht gv0-client-0 gv0-client-1");
        assert_eq!(names(3, 3), "gv0-replicate-0");
        assert_eq!(names(1, 1), "gv0-client-0");
    }

    #[test]
    fn each_mistake_is_one_line_that_says_what_to_do() {
        let brick = "[[brick]]\nid = \"a\"\naddress = \"h:1\"\npath = \"/a\"\n";
        let cases = [
            (format!("{HEAD}replcia = 3\n{brick}"), "line 3: unknown field `replcia`"),
            (format!("{HEAD}{brick}colour = 1\n"), "line 7: unknown field `colour`"),
            (format!("{HEAD}replica = 3\n{brick}"), "1 bricks do not make whole sets of `replica = 3`: give 3 bricks"),
            (format!("{HEAD}replica = 0\n{brick}"), "`replica = 0`"),
            (format!("{HEAD}replica = -1\n{brick}"), "line 3"),
            (format!("{HEAD}arbiter = true\n{brick}"), "`arbiter = true` needs `replica = 3`"),
            (format!("{HEAD}quorum = {{ fixed = 2 }}\n{brick}"), "`quorum` asks for 2 of 1 copies"),
            (HEAD.to_owned(), "there is no brick"),
            (format!("{HEAD}{brick}{brick}"), "two bricks have the id `a`"),
            (format!("{HEAD}{}", brick.replace("h:1", "h")), "is not HOST:PORT"),
            (format!("{HEAD}{}", brick.replace("/a", "a")), "must begin with `/`"),
            (format!("{HEAD}{}", brick.replace("\"a\"", "\"../a\"")), "will not do"),
            (HEAD.replace("gv0", ""), "the name `` will not do"),
            (HEAD.replace("9a6a", "xa6a"), "line 2"),
        ];
        for (text, wanted) in cases {
            let got = line(&text);
            assert!(got.contains(wanted) && !got.contains('\n'), "{got:?} should say {wanted:?}");
        }
    }

    #[test]
    fn a_brick_argument_is_host_port_and_path() {
        assert_eq!(split_brick("a:/b/"), Ok(("a:24100".into(), "/b".into())));
        assert_eq!(split_brick("a:7:/b:/c"), Ok(("a:7".into(), "/b:/c".into())));
        assert_eq!(split_brick("[::1]:/b"), Ok(("[::1]:24100".into(), "/b".into())));
        assert_eq!(split_brick("[::1]:7:/"), Ok(("[::1]:7".into(), "/".into())));
        assert!(split_brick("/b").is_err() && split_brick(":/b").is_err());
    }
}
