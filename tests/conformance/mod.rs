//! What every volume must do, whatever it is made of: stories over a [`Tree`], run on every stack.
//!
//! A story gets a fresh directory. It knows nothing of the layers below.

mod attributes;
mod data;
mod directories;
mod listing;
mod locks;
mod names;
mod open_files;
mod renames;
mod space;
mod xattrs;

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use futures::future::BoxFuture;
use mortar_tests::stacks::{Shape, Stack};
use mortar_tests::tree::Tree;

/// One story.
#[derive(Clone, Copy)]
struct Story {
    name: &'static str,
    run: fn(Tree) -> BoxFuture<'static, ()>,
}

/// A table of the functions of a group, each with its name.
macro_rules! stories {
    ($($story:ident,)*) => {
        pub(super) const STORIES: &[$crate::conformance::Story] = &[$($crate::conformance::Story {
            name: stringify!($story),
            run: |tree| Box::pin($story(tree)),
        },)*];
    };
}
use stories;

const GROUPS: &[(&str, &[Story])] = &[
    ("names", names::STORIES),
    ("directories", directories::STORIES),
    ("renames", renames::STORIES),
    ("data", data::STORIES),
    ("open_files", open_files::STORIES),
    ("attributes", attributes::STORIES),
    ("xattrs", xattrs::STORIES),
    ("listing", listing::STORIES),
    ("locks", locks::STORIES),
    ("space", space::STORIES),
];

/// Run all stories on one stack, each in a directory of its own; then say which failed.
async fn tell_all(shape: Shape) {
    let stack = Stack::start(shape).await;
    let root = stack.tree().await;
    let mut failed = Vec::new();
    let stories = GROUPS.iter().flat_map(|(group, stories)| stories.iter().map(move |story| (group, story)));
    for (number, (group, story)) in stories.enumerate() {
        let place = format!("{number}-{}", story.name);
        root.mkdir(&place).await.expect("a directory for the story");
        let told = AssertUnwindSafe((story.run)(root.below(&place))).catch_unwind().await;
        if told.is_err() {
            failed.push(format!("{group}::{}", story.name));
        }
    }
    stack.stop().await;
    assert!(failed.is_empty(), "on {shape:?}: {failed:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_brick_alone_does_all() {
    tell_all(Shape::Posix).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_brick_with_leases_does_all() {
    tell_all(Shape::Replicated { sets: 1, copies: 1 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_copies_do_all() {
    tell_all(Shape::Replicated { sets: 1, copies: 3 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sets_of_one_do_all() {
    tell_all(Shape::Replicated { sets: 2, copies: 1 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sets_of_three_do_all() {
    tell_all(Shape::Replicated { sets: 2, copies: 3 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_spread_over_bare_bricks_do_all() {
    tell_all(Shape::Spread { sets: 3 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_brick_behind_the_wire_does_all() {
    tell_all(Shape::Wire { sets: 1, copies: 1 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sets_of_three_behind_the_wire_do_all() {
    tell_all(Shape::Wire { sets: 2, copies: 3 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sets_of_three_processes_do_all() {
    tell_all(Shape::Processes { sets: 2, copies: 3 }).await;
}
