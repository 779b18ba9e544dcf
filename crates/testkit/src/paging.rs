//! Swap areas beside the files: a pager that knows the bytes of its pages, and a survey of the blocks that may not
//! overlap.

use std::collections::BTreeMap;

use moafs_disk::{Buf, Page, SharedDisk};
use moafs_runtime::Live;
use moafs_swap::{Home, PAGE_BYTES, PageNo, Swap, SwapError, SwapOptions};
use moafs_vfs::format::Survey;
use moafs_vfs::types::{BlockRun, FileKind, Ino, Lbn};
use moafs_vfs::{Format, Vfs};

use crate::ops::Paging;
use crate::stamp;

/// Label of the bytes in pages: no file has it.
pub const LABEL: u64 = u64::MAX / 2;

/// Rounds of background work after which none should be left.
const TEND_ROUNDS: usize = 10_000;

type Said<T> = Result<T, String>;

/// A swap, and the bytes that its pages should hold.
pub struct Pager {
    swap: Swap,
    /// The pages that are out, with the number of the last write.
    out: BTreeMap<u32, u64>,
    writes: u64,
    /// Blocks that the volume spent on it.
    cost: u64,
}

fn in_words(error: SwapError) -> String {
    error.to_string()
}

fn contents(page: u32, write: u64) -> Vec<u8> {
    stamp::bytes(LABEL, u64::from(page) * PAGE_BYTES as u64, PAGE_BYTES, write)
}

impl Pager {
    /// Makes a swap on a volume; `None` if the volume has no room for one.
    ///
    /// # Errors
    /// Any error but lack of space.
    pub fn on<F: Format>(vfs: &Vfs<F>, disk: SharedDisk, pages: u32, area_bytes: u64) -> Said<Option<Pager>> {
        let block_bytes = vfs.shape().block_size;
        let blocks = u64::from(pages) * (PAGE_BYTES as u64).div_ceil(block_bytes.into());
        let room = vfs.swap_space(blocks).map_err(|error| format!("making way: {error}"))?;
        let room = room.ok_or("the volume has no room for swap areas")?;
        let before = vfs.format().space().free_blocks;
        let home = Home { disk, block_bytes, room, head: vfs.last_access() };
        let options = SwapOptions { area_bytes, ..SwapOptions::default() };
        let swap = match Swap::open(Some(home), None, pages, Live::new(), options) {
            Err(SwapError::Volume { source, .. }) if source.errno() == libc::ENOSPC => return Ok(None),
            opened => opened.map_err(in_words)?,
        };
        let cost = before - vfs.format().space().free_blocks;
        if cost < blocks {
            return Err(format!("{pages} pages cost {cost} blocks only"));
        }
        Ok(Some(Pager { swap, out: BTreeMap::new(), writes: 0, cost }))
    }

    /// Ends the swap and checks that its blocks are free again.
    ///
    /// # Errors
    /// If they are not, or if a page has changed.
    pub fn off<F: Format>(self, vfs: &Vfs<F>) -> Said<()> {
        self.check()?;
        let before = vfs.format().space().free_blocks;
        let cost = self.cost;
        drop(self);
        let back = vfs.format().space().free_blocks - before;
        if back == cost { Ok(()) } else { Err(format!("the swap cost {cost} blocks, {back} came back")) }
    }

    /// Does one step, other than making and ending the swap.
    ///
    /// # Errors
    /// The fault, in words.
    pub fn step(&mut self, paging: Paging) -> Said<()> {
        let pages = self.swap.pages();
        let range = |first: u32, count: u32| first.min(pages)..first.saturating_add(count).min(pages);
        match paging {
            Paging::Out { first, count } => {
                self.writes += 1;
                let leaving = |page: u32| (PageNo(page), Buf::copy_of(&contents(page, self.writes)).freeze());
                let leaving: Vec<(PageNo, Page)> = range(first, count).map(leaving).collect();
                match self.swap.page_out(&leaving) {
                    Ok(()) => self.out.extend(range(first, count).map(|page| (page, self.writes))),
                    // If blocks are smaller than pages, a page may find no room although single blocks are free.
                    Err(SwapError::NoRoom { .. }) => range(first, count).try_for_each(|page| self.learn(page))?,
                    Err(error) => return Err(in_words(error)),
                }
                Ok(())
            }
            Paging::In { first, count } => range(first, count).try_for_each(|page| self.check_page(page)),
            Paging::Free { first, count } => {
                self.swap.free(PageNo(first), count);
                self.out.retain(|page, _| !range(first, count).contains(page));
                Ok(())
            }
            Paging::BackgroundStep => {
                for _ in 0..TEND_ROUNDS {
                    if !self.swap.run_background_step().map_err(in_words)? {
                        return Ok(());
                    }
                }
                Err("background work does not end".to_owned())
            }
            Paging::On { .. } | Paging::Off => Ok(()),
        }
    }

    /// Checks that every page holds the bytes last written to it, and that no two lie at the same place.
    ///
    /// # Errors
    /// The page that does not.
    pub fn check(&self) -> Said<()> {
        (0..self.swap.pages()).try_for_each(|page| self.check_page(page))?;
        let status = self.swap.status();
        if status.used as usize != self.out.len() {
            return Err(format!("{} pages in use, should be {}", status.used, self.out.len()));
        }
        if let Some(area) = status.areas.iter().find(|area| area.used > area.slots) {
            return Err(format!("more pages than slots: {area:?}"));
        }
        disjoint(status.areas.iter().map(|area| area.run).collect())
    }

    /// Returns the areas that it has now.
    pub fn areas(&self) -> Vec<BlockRun> {
        self.swap.status().areas.iter().map(|area| area.run).collect()
    }

    /// Takes over the state of a page that may have been written or not; it must be one of the two.
    fn learn(&mut self, page: u32) -> Said<()> {
        let before = self.out.get(&page).copied();
        if self.swap.is_out(PageNo(page)) {
            self.out.insert(page, self.writes);
        }
        if self.check_page(page).is_ok() {
            return Ok(());
        }
        self.out.extend(before.map(|write| (page, write)));
        self.check_page(page)
    }

    fn check_page(&self, page: u32) -> Said<()> {
        let mut is = vec![1; PAGE_BYTES];
        self.swap.page_in(PageNo(page), &mut is).map_err(in_words)?;
        let should = self.out.get(&page).map_or_else(|| vec![0; PAGE_BYTES], |write| contents(page, *write));
        if is == should {
            return Ok(());
        }
        let (is, should) = (stamp::describe(&is[..stamp::SECTOR]), stamp::describe(&should[..stamp::SECTOR]));
        Err(format!("page {page} holds {is}, should hold {should}"))
    }
}

/// The owners of all blocks of a volume, as its own survey reports them.
#[derive(Debug, Default)]
pub struct VolumeLayout {
    /// Runs of files and directories.
    pub files: Vec<BlockRun>,
    /// Runs of swap areas.
    pub areas: Vec<BlockRun>,
    /// Free runs.
    pub free: Vec<BlockRun>,
}

impl Survey for VolumeLayout {
    fn file(&mut self, _: Ino, _: FileKind, _: Option<Ino>, runs: &[(Lbn, BlockRun)]) {
        self.files.extend(runs.iter().map(|(_, run)| *run));
    }

    fn free(&mut self, run: BlockRun) {
        self.free.push(run);
    }

    fn metadata(&mut self, what: &'static str, _: u64, run: BlockRun) {
        if what == "swap area" {
            self.areas.push(run);
        }
    }
}

impl VolumeLayout {
    /// Reads the layout of a volume.
    ///
    /// # Errors
    /// A structure that cannot be read, or two owners of a block.
    pub fn of<F: Format>(vfs: &Vfs<F>) -> Said<VolumeLayout> {
        let mut layout = VolumeLayout::default();
        vfs.format().survey(&mut layout).map_err(|error| format!("survey: {error}"))?;
        let all = [&layout.files[..], &layout.areas, &layout.free].concat();
        disjoint(all).map_err(|said| format!("{said}; the areas are {:?}", layout.areas))?;
        Ok(layout)
    }

    /// Checks that all of these runs are free.
    ///
    /// # Errors
    /// The run that is not.
    pub fn has_free(&self, runs: &[BlockRun]) -> Said<()> {
        let within = |run: &BlockRun, free: &BlockRun| free.start <= run.start && run.end() <= free.end();
        match runs.iter().find(|run| !self.free.iter().any(|free| within(run, free))) {
            Some(run) => Err(format!("{run:?} is not free")),
            None => Ok(()),
        }
    }
}

/// Checks that no two runs share a block.
///
/// # Errors
/// The runs that do.
pub fn disjoint(mut runs: Vec<BlockRun>) -> Said<()> {
    runs.sort_unstable();
    match runs.windows(2).find(|pair| pair[1].start < pair[0].end()) {
        Some(pair) => Err(format!("{:?} and {:?} share blocks", pair[0], pair[1])),
        None => Ok(()),
    }
}
