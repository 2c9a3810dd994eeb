//! Small-file work as the smallfile tool does it: threads, each in directories of its own, one operation on all files at a time.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

/// Threads; the machine that the baselines are from has as many processors.
const THREADS: usize = 2;

/// Files in one directory, smallfile's own default.
const FILES_PER_DIRECTORY: usize = 100;

/// Bytes written by a create and by an append.
const FILE_BYTES: usize = 4096;

/// The operations, in the only order that makes sense: each finds what those before it have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Operation {
    /// Make a file and write 4 KiB to it.
    Create,
    /// Write another 4 KiB at its end.
    Append,
    /// Read it and compare.
    Read,
    /// List each directory and stat what is in it.
    LsL,
    /// Stat each file by name.
    Stat,
    /// Change its mode.
    Chmod,
    /// Give it a new name in the same directory.
    Rename,
    /// Remove it.
    Delete,
    /// Make a directory for each file.
    Mkdir,
    /// Remove it.
    Rmdir,
}

/// One operation on all files, by all threads at once.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The operation.
    pub operation: Operation,
    /// Where the threads' directories are.
    pub root: &'a Path,
    /// Files, all threads together.
    pub files: usize,
}

impl Job<'_> {
    /// Make the directories that the operations work in. Not measured.
    pub fn prepare(&self) -> Result<()> {
        for thread in 0..THREADS {
            for file in (0..self.files_per_thread()).step_by(FILES_PER_DIRECTORY) {
                fs::create_dir_all(self.directory(thread, file))?;
            }
        }
        Ok(())
    }

    /// Do it, and give the seconds from the common start to the end of the last thread.
    pub fn run(&self) -> Result<f64> {
        let barrier = Barrier::new(THREADS + 1);
        std::thread::scope(|scope| {
            let start = |thread| {
                scope.spawn({
                    let barrier = &barrier;
                    move || {
                        barrier.wait();
                        self.run_thread(thread)
                    }
                })
            };
            let threads: Vec<_> = (0..THREADS).map(start).collect();
            let started = Instant::now();
            barrier.wait();
            for thread in threads {
                thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            }
            Ok(started.elapsed().as_secs_f64())
        })
    }

    fn run_thread(&self, thread: usize) -> Result<()> {
        if self.operation == Operation::LsL {
            return self.list(thread);
        }
        let content = vec![b'm'; FILE_BYTES];
        let mut buffer = Vec::with_capacity(2 * FILE_BYTES);
        for file in 0..self.files_per_thread() {
            let old = self.directory(thread, file).join(format!("file{file:06}"));
            let new = self.directory(thread, file).join(format!("renamed{file:06}"));
            let directory = self.directory(thread, file).join(format!("dir{file:06}"));
            self.one(&Paths { old, new, directory }, &content, &mut buffer)
                .with_context(|| format!("{:?} of file {file} of thread {thread}", self.operation))?;
        }
        Ok(())
    }

    fn one(&self, paths: &Paths, content: &[u8], buffer: &mut Vec<u8>) -> Result<()> {
        match self.operation {
            Operation::Create => File::create_new(&paths.old)?.write_all(content)?,
            Operation::Append => OpenOptions::new().append(true).open(&paths.old)?.write_all(content)?,
            Operation::Read => {
                buffer.clear();
                File::open(&paths.old)?.read_to_end(buffer)?;
                ensure!(buffer.len() == 2 * FILE_BYTES && buffer.iter().all(|byte| *byte == b'm'), "wrong content");
            }
            Operation::LsL => unreachable!("a listing is by directory, see run_thread"),
            Operation::Stat => ensure!(fs::symlink_metadata(&paths.old)?.len() == 2 * FILE_BYTES as u64, "wrong size"),
            Operation::Chmod => fs::set_permissions(&paths.old, fs::Permissions::from_mode(0o600))?,
            Operation::Rename => fs::rename(&paths.old, &paths.new)?,
            Operation::Delete => fs::remove_file(&paths.new)?,
            Operation::Mkdir => fs::create_dir(&paths.directory)?,
            Operation::Rmdir => fs::remove_dir(&paths.directory)?,
        }
        Ok(())
    }

    fn list(&self, thread: usize) -> Result<()> {
        let mut seen = 0;
        for file in (0..self.files_per_thread()).step_by(FILES_PER_DIRECTORY) {
            for entry in fs::read_dir(self.directory(thread, file))? {
                let meta = entry?.metadata()?;
                seen += usize::from(meta.is_file());
            }
        }
        ensure!(seen == self.files_per_thread(), "{seen} files listed, not {}", self.files_per_thread());
        Ok(())
    }

    fn files_per_thread(&self) -> usize {
        self.files / THREADS
    }

    fn directory(&self, thread: usize, file: usize) -> PathBuf {
        self.root.join(format!("thread{thread}/part{:04}", file / FILES_PER_DIRECTORY))
    }
}

/// The names that one file has in its life.
#[derive(Debug)]
struct Paths {
    old: PathBuf,
    new: PathBuf,
    directory: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_finds_what_the_one_before_has_left() {
        let root = tempfile::tempdir().unwrap();
        for operation in Operation::value_variants() {
            let job = Job { operation: *operation, root: root.path(), files: 250 };
            job.prepare().unwrap();
            job.run().unwrap();
        }
    }
}
