//! Runs of blocks taken from a volume as swap areas take them, without the areas' own rules: each is full of bytes that
//! no file has.

use std::sync::Arc;

use moafs_disk::{Buf, Cause, DiskExt, Kind, Lba, SECTOR, SharedDisk, Tag};
use moafs_vfs::swap_space::{Group, SwapSpace, Where};
use moafs_vfs::types::{BlockAddr, BlockRun};
use moafs_vfs::{Format, Vfs};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use crate::{paging, stamp};

type Said<T> = Result<T, String>;

/// Runs taken from a volume, each full of bytes of its own.
pub struct Runs {
    room: Arc<dyn SwapSpace>,
    disk: SharedDisk,
    block_bytes: usize,
    /// Blocks that are reserved, those of the runs included.
    reserved: u64,
    /// The runs that are taken, each with the generation of its bytes.
    held: Vec<(BlockRun, u64)>,
    generation: u64,
}

impl Runs {
    /// Creates the state, without runs.
    pub fn new(room: Arc<dyn SwapSpace>, disk: SharedDisk, block_bytes: usize) -> Runs {
        Runs { room, disk, block_bytes, reserved: 0, held: Vec::new(), generation: 0 }
    }

    /// Returns the runs that are taken now.
    pub fn held(&self) -> Vec<BlockRun> {
        self.held.iter().map(|(run, _)| *run).collect()
    }

    /// Returns the number of runs that were ever taken.
    pub fn taken_so_far(&self) -> u64 {
        self.generation
    }

    fn taken(&self) -> u64 {
        self.held.iter().map(|(run, _)| u64::from(run.len)).sum()
    }

    fn volume_blocks(&self) -> u64 {
        self.disk.limits().sectors / (self.block_bytes / SECTOR) as u64
    }

    fn at(&self, run: BlockRun) -> Lba {
        Lba(run.start.0 * (self.block_bytes / SECTOR) as u64)
    }

    fn bytes(&self, run: BlockRun, generation: u64) -> Vec<u8> {
        stamp::bytes(paging::LABEL, 0, run.len as usize * self.block_bytes, generation)
    }

    /// Does one random step: reserves or releases blocks, takes or gives back a run.
    ///
    /// # Errors
    /// Fails on a breach of the contract of [`SwapSpace`], a run that shows other bytes than were written, and errors
    /// of the device.
    pub fn step(&mut self, vfs: &Vfs<impl Format>, rng: &mut Pcg64Mcg) -> Said<()> {
        match rng.random_range(0..10) {
            0 | 1 => self.reserve(vfs, rng.random_range(1..400)),
            2 => self.release(rng.random_range(1..300)),
            3..6 => self.take(rng),
            6 => match self.room.next_contended_group() {
                Some(group) if group.0 >= self.room.groups() => Err(format!("{group:?} is pressed")),
                _ => Ok(()),
            },
            _ => self.give(rng),
        }
    }

    fn reserve(&mut self, vfs: &Vfs<impl Format>, blocks: u64) -> Said<()> {
        vfs.swap_space(blocks).map_err(|error| format!("making way: {error}"))?;
        match self.room.reserve(blocks) {
            Ok(()) => self.reserved += blocks,
            Err(error) if error.errno() == libc::ENOSPC => {}
            Err(error) => return Err(format!("reserve {blocks}: {error}")),
        }
        Ok(())
    }

    fn release(&mut self, blocks: u64) -> Said<()> {
        let blocks = blocks.min(self.reserved - self.taken());
        self.room.release(blocks);
        self.reserved -= blocks;
        Ok(())
    }

    fn take(&mut self, rng: &mut Pcg64Mcg) -> Said<()> {
        let (len, granule) = (rng.random_range(1..120), rng.random_range(1..5));
        let group = Group(rng.random_range(0..self.room.groups()));
        let at = match rng.random_range(0..4) {
            0 | 1 => Where::EndOf(group),
            2 => Where::LOWEST,
            _ => Where::From(BlockAddr(rng.random_range(0..self.volume_blocks()))),
        };
        let left = self.reserved - self.taken();
        let taken = self.room.take(at, len, granule).map_err(|error| format!("take {at:?}: {error}"))?;
        let Some(run) = taken else {
            let must = at == Where::LOWEST && granule == 1 && left > 0;
            return if must { Err(format!("nothing to take, though {left} blocks are promised")) } else { Ok(()) };
        };
        let fits = match at {
            Where::EndOf(group) => run.len == len && self.room.group_of(run.start) == Some(group),
            Where::From(block) => {
                run.start >= block && run.len <= len && run.len.is_multiple_of(granule) && run.len > 0
            }
        };
        if !fits || u64::from(run.len) > left {
            return Err(format!("take({at:?}, {len}, {granule}) gives {run:?}, {left} blocks are promised"));
        }
        paging::disjoint(self.held().into_iter().chain([run]).collect())?;
        self.generation += 1;
        let data = Buf::copy_of(&self.bytes(run, self.generation)).freeze();
        let tag = Tag::new(Kind::Swap, 0, Cause::Evict);
        self.disk.write(self.at(run), data, tag).map_err(|error| error.to_string())?;
        self.held.push((run, self.generation));
        Ok(())
    }

    fn give(&mut self, rng: &mut Pcg64Mcg) -> Said<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let (run, generation) = self.held.swap_remove(rng.random_range(0..self.held.len()));
        self.check(run, generation)?;
        // Some runs are given back in two parts.
        let cut = rng.random_range(0..run.len);
        let parts = [(run.start.0, cut), (run.start.0 + u64::from(cut), run.len - cut)];
        for (start, len) in parts.into_iter().filter(|(_, len)| *len > 0) {
            self.room.give(BlockRun { start: BlockAddr(start), len });
        }
        Ok(())
    }

    fn check(&self, run: BlockRun, generation: u64) -> Said<()> {
        let tag = Tag::new(Kind::Swap, 0, Cause::Demand);
        let bytes = run.len as usize * self.block_bytes;
        let is = self.disk.read(self.at(run), bytes, tag).map_err(|error| error.to_string())?;
        let should = self.bytes(run, generation);
        match (0..bytes).step_by(SECTOR).find(|at| is[*at..at + SECTOR] != should[*at..at + SECTOR]) {
            Some(at) => Err(format!("{run:?} shows {} at byte {at}", stamp::describe(&is[at..at + SECTOR]))),
            None => Ok(()),
        }
    }

    /// Gives all runs back, after a last check of their bytes.
    ///
    /// # Errors
    /// As [`Runs::step`].
    pub fn give_all(&mut self) -> Said<()> {
        for (run, generation) in std::mem::take(&mut self.held) {
            self.check(run, generation)?;
            self.room.give(run);
        }
        self.room.release(std::mem::take(&mut self.reserved));
        Ok(())
    }
}
