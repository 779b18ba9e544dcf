//! Compiling a source tree: read a source, compute, write its object file; directory by directory.

use moafs_vfs::Format;
use moafs_workload::Sizes;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::Client;
use super::create::make_dirs;
use crate::error::Result;

/// A tree of sources and the parameters of its build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Build {
    /// Number of source files.
    pub sources: u64,
    /// Directories with sources; as many with objects.
    pub directories: u64,
    /// Distribution of the sources' sizes.
    pub source_sizes: Sizes,
    /// Bytes of all object files together. Each gets a share in proportion to its source.
    pub object_bytes: u64,
    /// Processor time between the last read of a source and the first write of its object.
    pub compile_ns: u64,
    /// Seed of the sizes.
    pub seed: u64,
}

/// The tree to build.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// Sizes of the sources, in order.
    source_bytes: Vec<u64>,
}

impl Build {
    /// Name of the workload in messages.
    pub const NAME: &str = "the build";

    fn source_dir(number: u64) -> String {
        format!("d{number:04}")
    }

    fn dir_of(&self, source: u64) -> u64 {
        source * self.directories / self.sources
    }

    /// Writes the sources. The volume should be mounted again afterwards, so that nothing is cached.
    ///
    /// # Errors
    /// Fails if the volume is full.
    pub fn prepare(&self, client: &Client<impl Format>) -> Result<Tree> {
        client.finish(Self::NAME, self.write_sources(client))
    }

    fn write_sources(&self, client: &Client<impl Format>) -> Result<Tree> {
        let mut rng = Pcg64Mcg::seed_from_u64(self.seed);
        let dirs = make_dirs(client, self.directories)?;
        let mut tree = Tree::default();
        for source in 0..self.sources {
            let bytes = self.source_sizes.draw(&mut rng);
            let dir = dirs[self.dir_of(source) as usize];
            client.make_file(dir, &format!("s{source:05}.c"), bytes)?;
            tree.source_bytes.push(bytes);
        }
        client.sync()?;
        Ok(tree)
    }

    /// Builds, and waits until everything is on the device. Returns the bytes of object files.
    ///
    /// # Errors
    /// Fails if the volume is full.
    pub fn run(&self, client: &Client<impl Format>, tree: &Tree) -> Result<u64> {
        client.finish(Self::NAME, self.compile_all(client, tree))
    }

    fn compile_all(&self, client: &Client<impl Format>, tree: &Tree) -> Result<u64> {
        let all: u64 = tree.source_bytes.iter().sum();
        let mut written = 0;
        for dir in 0..self.directories {
            let from = client.open(client.root(), &Self::source_dir(dir))?;
            let to = client.make_dir(client.root(), &format!("o{dir:04}"))?;
            for source in (0..self.sources).filter(|source| self.dir_of(*source) == dir) {
                let bytes = tree.source_bytes[source as usize] * self.object_bytes / all.max(1);
                self.compile(client, from, to, source, bytes.max(1))?;
                written += bytes.max(1);
            }
            client.close(from);
            client.close(to);
        }
        client.sync()?;
        Ok(written)
    }

    fn compile(
        &self,
        client: &Client<impl Format>,
        from: moafs_vfs::types::Ino,
        to: moafs_vfs::types::Ino,
        source: u64,
        object_bytes: u64,
    ) -> Result<()> {
        let ino = client.open(from, &format!("s{source:05}.c"))?;
        let read = client.read_all(ino);
        client.close(ino);
        read?;
        client.compute(self.compile_ns);
        client.make_file(to, &format!("s{source:05}.o"), object_bytes)?;
        Ok(())
    }
}
