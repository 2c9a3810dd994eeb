//! The rules of the house that a compiler does not know.
//!
//! Each test reads the source as text, and says which line breaks which rule.

use std::fs;
use std::path::{Path, PathBuf};

/// One screen: the longest a function may be. Clippy counts the same for what it sees.
const FUNCTION_LINES_MAX: usize = 60;
/// One idea: the longest a file may be.
const FILE_LINES_MAX: usize = 600;
/// Rustfmt keeps code to 120, and leaves comments and strings alone.
const LINE_CHARS_MAX: usize = 160;

/// A file of the house.
struct Source {
    /// Below the top.
    path: String,
    text: String,
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a member of the workspace").into()
}

/// All files below some folders, without what a build makes.
fn files(folders: &[&str]) -> Vec<Source> {
    let top = top();
    let mut waiting: Vec<PathBuf> = folders.iter().map(|folder| top.join(folder)).collect();
    let mut found = Vec::new();
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
            waiting.extend(entries.filter(|entry| !entry.ends_with("target") && !entry.ends_with(".git")));
        } else if let Ok(text) = fs::read_to_string(&path) {
            let path = path.strip_prefix(&top).unwrap().to_string_lossy().into_owned();
            found.push(Source { path, text });
        }
    }
    found.sort_by(|left, right| left.path.cmp(&right.path));
    found
}

fn sources(folders: &[&str]) -> Vec<Source> {
    files(folders).into_iter().filter(|file| file.path.ends_with(".rs")).collect()
}

const CRATES: [&str; 5] = ["proto", "xlators", "brick", "client", "tests"];

/// The lines of the code of a file that are not comments, with their numbers from 1, without its unit tests.
fn code_lines(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let code = source.text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().enumerate().map(|(at, line)| (at + 1, line)).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Every line of code in `folders` that has one of the words, but for files that `may`.
fn lines_with(folders: &[&str], words: &[&str], may: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources(folders).iter().filter(|source| !may(&source.path)) {
        for (at, line) in code_lines(source) {
            if words.iter().any(|word| line.contains(word)) {
                found.push(format!("{}:{at}: {}", source.path, line.trim()));
            }
        }
    }
    found
}

#[track_caller]
fn none(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}\n{}", found.join("\n"));
}

#[test]
fn translators_know_neither_our_other_crates_nor_the_wire_nor_the_mount() {
    let words = ["mortar_", "tonic::", "prost::", "fuser::"];
    none("xlators names nothing above it", &lines_with(&["xlators/src"], &words, |_| false));
    let manifest = fs::read_to_string(top().join("xlators/Cargo.toml")).unwrap();
    for word in ["mortar-proto", "mortar-brick", "mortar-client", "tonic", "prost", "fuser"] {
        assert!(!manifest.contains(word), "xlators/Cargo.toml depends on {word}");
    }
}

#[test]
fn generated_types_are_named_where_frames_are_made() {
    let may = |path: &str| {
        path.starts_with("proto/")
            || path.starts_with("brick/src/service")
            || path.starts_with("brick/src/session")
            || path.starts_with("client/src/remote")
            // Tells the stock health service which service it is about.
            || path == "brick/src/lib.rs"
    };
    let words = ["mortar_proto::pb", "pb::", "prost::"];
    none("only the ends of the wire name generated types", &lines_with(&["brick/src", "client/src"], &words, may));
}

#[test]
fn the_kernel_is_spoken_to_in_one_folder() {
    let may = |path: &str| path.starts_with("client/src/fuse/");
    none("only client/src/fuse names FUSE", &lines_with(&["brick/src", "client/src"], &["fuser::", "FUSE_"], may));
}

#[test]
fn the_file_system_is_touched_at_the_bottom_only() {
    let may = |path: &str| path.starts_with("xlators/src/posix/") || path.starts_with("xlators/src/index/");
    let words = ["std::fs", "rustix::fs", "tokio::fs", "libc::"];
    none("only posix and index touch the file system", &lines_with(&["xlators/src"], &words, may));
}

#[test]
fn translators_do_not_name_each_other() {
    let top = top().join("xlators/src");
    let mut layers = Vec::new();
    for entry in fs::read_dir(top).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().trim_end_matches(".rs").to_owned();
        layers.push(name);
    }
    let vocabulary =
        ["lib", "xlator", "fop", "effect", "reply", "types", "ctx", "error", "graph", "lk", "ranges", "log", "observe"];
    layers.retain(|name| !vocabulary.contains(&name.as_str()));
    assert!(layers.len() > 4, "{layers:?}");
    // The index stands on the store, and is the journal of the leases: the three make one brick.
    let allowed = [("index", "posix"), ("index", "leases")];
    let mut found = Vec::new();
    for layer in &layers {
        for other in layers.iter().filter(|other| *other != layer) {
            if allowed.contains(&(layer, other)) {
                continue;
            }
            let may = |path: &str| {
                !path.starts_with(&format!("xlators/src/{layer}/")) && path != format!("xlators/src/{layer}.rs")
            };
            let word = format!("crate::{other}::");
            found.extend(lines_with(&["xlators/src"], &[&word], |path| may(path) || path.contains("/tests")));
        }
    }
    none("translators do not name each other; graph.rs names them all", &found);
}

#[test]
fn translators_read_no_environment_and_no_wall_clock() {
    let words = ["std::env", "env::var", "SystemTime::now", "getrandom"];
    none("what a layer needs comes with its config or with Ctx", &lines_with(&["xlators/src"], &words, |_| false));
}

#[test]
fn every_file_says_what_it_is_for() {
    let silent = |source: &Source| !source.text.starts_with("//!");
    let found: Vec<_> = sources(&CRATES).into_iter().filter(silent).map(|source| source.path).collect();
    none("the first line of a file is its purpose", &found);
}

#[test]
fn files_and_lines_are_short() {
    let mut found = Vec::new();
    for source in sources(&CRATES) {
        let lines = source.text.lines().count();
        // A table in the order of the fops, with nothing but conversions.
        let table = source.path.starts_with("proto/src/codec/");
        if lines > FILE_LINES_MAX && !table {
            found.push(format!("{}: {lines} lines", source.path));
        }
        for (at, line) in source.text.lines().enumerate() {
            if line.chars().count() > LINE_CHARS_MAX && !line.contains(['"', '\'']) {
                found.push(format!("{}:{}: {} characters", source.path, at + 1, line.chars().count()));
            }
        }
    }
    none("one idea per file", &found);
}

/// Clippy counts functions, too, but not in macros and where somebody allowed more.
#[test]
fn functions_fit_on_a_screen() {
    let mut found = Vec::new();
    for source in sources(&CRATES) {
        let mut begin: Option<(usize, usize, String)> = None;
        for (at, line) in source.text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let is_head =
                line.contains("fn ") && !line.trim_start().starts_with("//") && !line.trim_end().ends_with(';');
            match &begin {
                None if is_head => begin = Some((at, indent, line.trim().to_owned())),
                Some((start, depth, head)) if indent == *depth && line.trim_start().starts_with('}') => {
                    let lines = at - start;
                    // The signature may take a few lines of its own.
                    if lines > FUNCTION_LINES_MAX + 10 {
                        found.push(format!("{}:{}: {lines} lines: {head}", source.path, start + 1));
                    }
                    begin = None;
                }
                _ => {}
            }
        }
    }
    none("one screen per function", &found);
}

#[test]
fn nothing_is_allowed_to_be_too_long_or_unwrapped() {
    let words = ["allow(clippy::too_many_lines", "allow(clippy::unwrap_used", "allow(clippy::await_holding_lock"];
    none("lints are kept, not silenced", &lines_with(&CRATES, &words, |path| path == "tests/tidy.rs"));
}

#[test]
fn nothing_is_left_to_do_in_the_code() {
    let words = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), "unimplemented!", "todo!"];
    none("what is missing is an issue, not a comment", &lines_with(&CRATES, &words, |path| path == "tests/tidy.rs"));
}

#[test]
fn no_path_of_one_machine_is_in_the_tree() {
    let words = [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/")];
    let mut found = Vec::new();
    for file in
        files(&["proto", "xlators", "brick", "client", "tests", "deploy", "README.md", ".ci", ".cargo", "Cargo.toml"])
    {
        for (at, line) in file.text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) {
                found.push(format!("{}:{}: {}", file.path, at + 1, line.trim()));
            }
        }
    }
    none("the tree works anywhere", &found);
}

#[test]
fn every_crate_takes_its_lints_and_its_version_from_the_workspace() {
    for name in CRATES {
        let manifest = fs::read_to_string(top().join(name).join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "{name}: lints");
        assert!(manifest.contains("\nversion.workspace = true"), "{name}: version");
        for line in manifest.lines().filter(|line| line.contains("version") && !line.contains("version.workspace")) {
            assert!(line.trim_start().starts_with('#') || line.contains("rust-version"), "{name}: {line}");
        }
    }
}

#[test]
fn every_module_of_tests_is_listed() {
    let runner = fs::read_to_string(top().join("tests/runner.rs")).unwrap();
    let mut forgotten = Vec::new();
    for entry in fs::read_dir(top().join("tests")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let is_module = path.extension().is_some_and(|extension| extension == "rs") || path.join("mod.rs").exists();
        // These belong to the library of the tests.
        let library = ["src", "bench", "judges", "runner"].contains(&name.as_str());
        if is_module && !library && !runner.contains(&format!("mod {name};")) {
            forgotten.push(name);
        }
    }
    none("tests/runner.rs lists every module", &forgotten);
}

#[test]
fn every_story_is_told() {
    let mut forgotten = Vec::new();
    for source in sources(&["tests/conformance"]) {
        for (at, line) in source.text.lines().enumerate() {
            let Some(story) = line.strip_prefix("async fn ").filter(|rest| rest.contains("(tree: Tree)")) else {
                continue;
            };
            let name = story.split('(').next().unwrap_or_default();
            let listed =
                source.text.contains(&format!("    {name},\n")) || source.text.contains(&format!("stories![{name},"));
            if !listed {
                forgotten.push(format!("{}:{}: {name}", source.path, at + 1));
            }
        }
    }
    none("a story that is not in the table of its file is never run", &forgotten);
}
