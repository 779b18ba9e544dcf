//! A stand-in for a kernel compile: the objects of the last one are deleted, then every source is compiled again.
//!
//! Sources and objects lie in many directories; sources have R-FSL's sizes up to 64 KB. For each
//! source: the compiler's programs are run, whose text are files like others (what of them has left
//! the cache is read again); the source and some headers are read (a few that all include, others
//! drawn at random); the compiler takes memory of its own page by page while it computes, writes
//! the object, and gives the memory back. At the end all objects are read and linked.

use moafs_vfs::Format;
use moafs_vfs::types::Ino;
use moafs_workload::Sizes;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::Touch;
use crate::error::Result;
use crate::memory::{Access, Process};
use crate::workload::Client;

/// Headers that everything includes.
const COMMON_HEADERS: u64 = 20;
/// Headers that each source includes beside the common ones.
const DRAWN_HEADERS: u64 = 40;
/// Programs that each compile runs.
const TOOLS: u64 = 5;
/// Times a page of the compiler's memory is used while it computes.
const PASSES: u64 = 4;

/// A source tree and its compile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compile {
    /// Source files, and as many objects.
    pub sources: u64,
    /// Directories of sources, and as many of objects.
    pub directories: u64,
    /// Header files, in one directory.
    pub headers: u64,
    /// Bytes of the text of the programs that each compile runs: make, shell, preprocessor,
    /// compiler, assembler.
    pub tools_bytes: u64,
    /// Bytes of all objects together, each in proportion to its source.
    pub object_bytes: u64,
    /// Processor time for a source, in nanoseconds.
    pub compile_ns: u64,
    /// Memory of the compiler, in pages.
    pub pages: u32,
    /// Seed of sizes and of the choice of headers.
    pub seed: u64,
}

impl Compile {
    /// Name of the workload in messages.
    pub const NAME: &str = "the compile";

    fn source_sizes(&self) -> Vec<u64> {
        let mut rng = Pcg64Mcg::seed_from_u64(self.seed);
        (0..self.sources).map(|_| Sizes::Real { bytes_max: 64 << 10 }.draw(&mut rng)).collect()
    }

    fn object_bytes(&self, sizes: &[u64], source: u64) -> u64 {
        let all: u64 = sizes.iter().sum();
        (sizes[source as usize] * self.object_bytes / all.max(1)).max(1)
    }

    fn dir_of(&self, source: u64) -> u64 {
        source * self.directories / self.sources.max(1)
    }

    /// Makes the tree with the objects of the last compile, below the client's root.
    ///
    /// # Errors
    /// Fails if the volume is full.
    pub fn prepare(&self, client: &Client<impl Format>) -> Result<()> {
        client.finish(Self::NAME, self.make_tree(client))
    }

    fn make_tree(&self, client: &Client<impl Format>) -> Result<()> {
        let sizes = self.source_sizes();
        let mut rng = Pcg64Mcg::seed_from_u64(self.seed.wrapping_add(1));
        let headers = client.make_dir(client.root(), "include")?;
        for header in 0..self.headers {
            let bytes = Sizes::Real { bytes_max: 32 << 10 }.draw(&mut rng);
            client.make_file(headers, &format!("h{header:04}.h"), bytes)?;
        }
        let tools = client.make_dir(client.root(), "tools")?;
        for tool in 0..TOOLS {
            client.make_file(tools, &format!("t{tool}"), self.tools_bytes / TOOLS)?;
        }
        for (kind, end) in [("src", "c"), ("obj", "o")] {
            let top = client.make_dir(client.root(), kind)?;
            for dir in 0..self.directories {
                let ino = client.make_dir(top, &format!("d{dir:04}"))?;
                for source in (0..self.sources).filter(|source| self.dir_of(*source) == dir) {
                    let bytes = if kind == "src" { sizes[source as usize] } else { self.object_bytes(&sizes, source) };
                    client.make_file(ino, &format!("f{source:05}.{end}"), bytes)?;
                }
            }
        }
        client.sync()
    }

    /// Deletes the objects and compiles, until everything is on the device. `process` is the compiler's memory.
    ///
    /// # Errors
    /// Fails if the volume is full, or if the swap fails.
    pub fn run(&self, client: &Client<impl Format>, process: &Process) -> Result<()> {
        client.finish(Self::NAME, self.compile_all(client, process))
    }

    fn compile_all(&self, client: &Client<impl Format>, process: &Process) -> Result<()> {
        let sizes = self.source_sizes();
        let mut rng = Pcg64Mcg::seed_from_u64(self.seed.wrapping_add(2));
        let (from, to) = (self.open_dirs(client, "src")?, self.open_dirs(client, "obj")?);
        let headers = client.open(client.root(), "include")?;
        let tools = client.open(client.root(), "tools")?;
        for source in 0..self.sources {
            client.unlink(to[self.dir_of(source) as usize], &format!("f{source:05}.o"))?;
        }
        for source in 0..self.sources {
            let dir = self.dir_of(source) as usize;
            for tool in 0..TOOLS {
                read(client, tools, &format!("t{tool}"))?;
            }
            read(client, from[dir], &format!("f{source:05}.c"))?;
            for header in 0..(COMMON_HEADERS + DRAWN_HEADERS).min(self.headers) {
                let header = if header < COMMON_HEADERS { header } else { rng.random_range(0..self.headers) };
                read(client, headers, &format!("h{header:04}.h"))?;
            }
            self.compile(process)?;
            let bytes = self.object_bytes(&sizes, source);
            client.make_file(to[dir], &format!("f{source:05}.o"), bytes)?;
        }
        self.link(client, &to)?;
        client.sync()
    }

    fn link(&self, client: &Client<impl Format>, objects: &[Ino]) -> Result<()> {
        for source in 0..self.sources {
            read(client, objects[self.dir_of(source) as usize], &format!("f{source:05}.o"))?;
        }
        client.make_file(client.root(), "kernel", self.object_bytes).map(drop)
    }

    fn open_dirs(&self, client: &Client<impl Format>, kind: &str) -> Result<Vec<Ino>> {
        let top = client.open(client.root(), kind)?;
        (0..self.directories).map(|dir| client.open(top, &format!("d{dir:04}"))).collect()
    }

    fn compile(&self, process: &Process) -> Result<()> {
        let share_ns = self.compile_ns / (PASSES * u64::from(self.pages)).max(1);
        for _ in 0..PASSES {
            for page in 0..self.pages {
                Touch::touch(process, page.into(), Access::Write)?;
                process.compute(share_ns);
            }
        }
        process.settle();
        process.release();
        Ok(())
    }
}

fn read(client: &Client<impl Format>, dir: Ino, name: &str) -> Result<()> {
    let ino = client.open(dir, name)?;
    let read = client.read_all(ino);
    client.close(ino);
    read.map(drop)
}
