//! Files that come and go.

use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use crate::Sizes;

/// A file of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// Index of its directory.
    pub dir: usize,
    /// Number of its name: files are counted in the order of their making, from 0 on.
    pub number: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// An operation on a file of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The file is made, and all of it written.
    Create(File),
    /// All of the file is read.
    Read(File),
    /// Bytes are written behind the end of the file.
    Append {
        /// The file as it is before.
        file: File,
        /// Number of bytes, which may be 0.
        bytes: u64,
    },
    /// The file is removed.
    Delete(File),
}

/// The files that exist. Every choice is drawn from the generator that a method is given.
#[derive(Debug, Clone)]
pub struct Pool {
    directories: usize,
    sizes: Sizes,
    files: Vec<File>,
    next_number: u64,
}

impl Pool {
    /// Makes an empty pool in `directories` directories.
    ///
    /// # Panics
    /// Panics if there is no directory.
    pub fn new(directories: usize, sizes: Sizes) -> Pool {
        assert!(directories > 0, "files need a directory");
        Pool { directories, sizes, files: Vec::new(), next_number: 0 }
    }

    /// Returns the files that exist, in no order that means anything.
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// Makes a file in a directory. Draws its size.
    pub fn create_in(&mut self, dir: usize, rng: &mut Pcg64Mcg) -> Step {
        let file = File { dir, number: self.next_number, bytes: self.sizes.draw(rng) };
        self.next_number += 1;
        self.files.push(file);
        Step::Create(file)
    }

    /// Makes file `number` of `files`, which fill one directory after another. Draws its size.
    pub fn fill(&mut self, number: u64, files: u64, rng: &mut Pcg64Mcg) -> Step {
        self.create_in((number * self.directories as u64 / files) as usize, rng)
    }

    /// Makes a file. Draws its directory, then its size.
    pub fn create(&mut self, rng: &mut Pcg64Mcg) -> Step {
        let dir = rng.random_range(0..self.directories);
        self.create_in(dir, rng)
    }

    /// Draws an index among the files that exist, all equally likely.
    ///
    /// # Panics
    /// Panics if there is no file.
    pub fn any(&self, rng: &mut Pcg64Mcg) -> usize {
        rng.random_range(0..self.files.len())
    }

    /// Lets the file at an index grow.
    pub fn append(&mut self, at: usize, bytes: u64) -> Step {
        let file = self.files[at];
        self.files[at].bytes += bytes;
        Step::Append { file, bytes }
    }

    /// Removes a file. Draws which.
    ///
    /// # Panics
    /// Panics if there is no file.
    pub fn delete(&mut self, rng: &mut Pcg64Mcg) -> Step {
        let at = self.any(rng);
        Step::Delete(self.files.swap_remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn directories_are_filled_one_after_another() {
        let rng = &mut Pcg64Mcg::seed_from_u64(1);
        let mut pool = Pool::new(3, Sizes::FSL);
        let made: Vec<Step> = (0..6).map(|number| pool.fill(number, 6, rng)).collect();
        let of_made = made.iter().map(|step| match step {
            Step::Create(file) => (file.dir, file.number),
            other => panic!("{other:?}"),
        });
        assert_eq!(of_made.collect::<Vec<_>>(), [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5)]);
    }

    #[test]
    fn a_file_grows_is_removed_once_and_its_number_does_not_come_again() {
        let rng = &mut Pcg64Mcg::seed_from_u64(1);
        let mut pool = Pool::new(1, Sizes::FSL);
        let Step::Create(file) = pool.create(rng) else { panic!("a file is made") };
        assert_eq!(pool.append(0, 100), Step::Append { file, bytes: 100 });
        let grown = File { bytes: file.bytes + 100, ..file };
        assert_eq!(pool.files(), [grown]);
        assert_eq!(pool.delete(rng), Step::Delete(grown));
        assert!(pool.files().is_empty());
        assert!(matches!(pool.create(rng), Step::Create(File { number: 1, .. })));
    }
}
