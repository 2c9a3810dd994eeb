//! What operations on the names of a round, and on the content of a file, may answer.

use super::history_check::Step;

/// How many names a round has.
pub(super) const NAMES: usize = 3;

/// Which file or directory: the permission bits it was made with.
pub(super) type Token = u32;

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Thing {
    pub(super) token: Token,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    File,
    /// An empty one.
    Dir,
}

/// What every name stands for.
type State = [Option<Thing>; NAMES];

/// An operation on names with its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Names {
    /// Made a file that was not there (`Ok`), or something was there (`Err`).
    Create(usize, Result<Token, ()>),
    /// The same with a directory.
    Mkdir(usize, Result<Token, ()>),
    /// The name stood for this, or for nothing.
    Look(usize, Option<Thing>),
    /// The name stood for something of this kind.
    Is(usize, Kind),
    /// Removed a file, or there was nothing.
    Unlink(usize, bool),
    /// Removed a directory, or there was nothing.
    Rmdir(usize, bool),
    /// Renamed, or the first was not there.
    Rename(usize, usize, bool),
    /// Another name for an open file: made, or the name was there.
    Link(Token, usize, bool),
}

impl Step for Names {
    type State = State;

    fn next(&self, state: &State) -> Vec<State> {
        let is = |name: usize, kind| state[name].is_some_and(|thing| thing.kind == kind);
        let with = |name: usize, thing| {
            let mut after = *state;
            after[name] = thing;
            vec![after]
        };
        let if_so = |possible: bool| if possible { vec![*state] } else { Vec::new() };
        match *self {
            Self::Create(name, Ok(token)) if state[name].is_none() => {
                with(name, Some(Thing { token, kind: Kind::File }))
            }
            Self::Mkdir(name, Ok(token)) if state[name].is_none() => with(name, Some(Thing { token, kind: Kind::Dir })),
            Self::Link(token, to, true) if state[to].is_none() => with(to, Some(Thing { token, kind: Kind::File })),
            Self::Create(_, Ok(_)) | Self::Mkdir(_, Ok(_)) | Self::Link(_, _, true) => Vec::new(),
            Self::Create(name, Err(())) | Self::Mkdir(name, Err(())) | Self::Link(_, name, false) => {
                if_so(state[name].is_some())
            }
            Self::Look(name, thing) => if_so(state[name] == thing),
            Self::Is(name, kind) => if_so(is(name, kind)),
            Self::Unlink(name, true) => {
                if is(name, Kind::File) {
                    with(name, None)
                } else {
                    Vec::new()
                }
            }
            Self::Rmdir(name, true) => {
                if is(name, Kind::Dir) {
                    with(name, None)
                } else {
                    Vec::new()
                }
            }
            Self::Unlink(name, false) | Self::Rmdir(name, false) | Self::Rename(name, _, false) => {
                if_so(state[name].is_none())
            }
            Self::Rename(from, to, true) => rename(state, from, to),
        }
    }
}

/// Two names of one inode stay as they are. The kernel decides that by two looks, one after the other, so that a rename of
/// another mount between them makes the first name a second name of what has left it.
fn rename(state: &State, from: usize, to: usize) -> Vec<State> {
    let mut moved = *state;
    moved[to] = moved[from].take();
    match (state[from], state[to]) {
        (Some(one), Some(other)) if one == other => vec![*state],
        (Some(one), Some(other)) if one.kind != other.kind => Vec::new(),
        (Some(_), _) => vec![moved],
        (None, Some(_)) => vec![*state],
        (None, None) => Vec::new(),
    }
}

/// An operation on the content of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    Write(u64),
    Read(u64),
}

impl Step for Content {
    type State = u64;

    fn next(&self, state: &u64) -> Vec<u64> {
        match self {
            Self::Write(value) => vec![*value],
            Self::Read(value) if value == state => vec![*value],
            Self::Read(_) => Vec::new(),
        }
    }
}
