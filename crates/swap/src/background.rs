//! Background work: moves areas out of groups where the volume's writers find no space, and gives unused blocks back.
//!
//! An area that is being vacated takes no more pages. Its free slots are given back at once; its pages are read,
//! written where the search order sends them now, and switched only if they did not change meanwhile; then their slots
//! are given back as well. Capacity stays: blocks that are given back remain reserved for the swap, and every page has
//! its slot all the time.
//!
//! Pages in the traditional swap space are not moved: there is no better place for them. Its free blocks are given
//! back.

use moafs_disk::{Buf, Cause, DiskExt, Op, Page, Request};

use crate::device::{Swap, page_at, tag};
use crate::error::SwapError;
use crate::page::{PAGE_BYTES, PageNo};
use crate::state::{Batch, Purpose, SlotNo, SlotRun, Spare};

/// The most pages that one step moves: 256 KiB read and written.
const MIGRATION_PAGES: u32 = 64;

impl Swap {
    /// Runs one bounded background step: looks for contended groups, gives free blocks back, moves some pages. Returns
    /// true if there are more pages to move and this step has moved some.
    ///
    /// # Errors
    /// [`SwapError::Device`] for a page that could not be moved and stays where it is. The next call continues behind
    /// it.
    pub fn run_background_step(&self) -> Result<bool, SwapError> {
        if self.home.is_none() {
            return Ok(false);
        }
        let Some(_tending) = self.tending.try_lock() else { return Ok(false) };
        let pressed = self.poll_contended_groups();
        self.give_spare(if pressed { Spare::All } else { Spare::Idle });
        self.state.lock().mark_idle(self.rt.now());
        let moved = self.migrate()?;
        self.give_spare(Spare::Leaving);
        Ok(moved && self.state.lock().is_leaving())
    }

    /// Marks the areas of contended groups, in which a writer found no space, to be vacated.
    /// Returns true if there were such groups.
    fn poll_contended_groups(&self) -> bool {
        let Some(home) = &self.home else { return false };
        let mut pressed = false;
        for _ in 0..home.room.groups() {
            let Some(group) = home.room.next_contended_group() else { break };
            self.state.lock().leave(group, self.rt.now());
            pressed = true;
        }
        pressed
    }

    fn give_spare(&self, spare: Spare) {
        let now = self.rt.now();
        while let Some(run) = { self.state.lock().next_spare(spare, now) } {
            self.give(run);
        }
    }

    /// Moves pages out of an area that is being vacated. Returns true if some have moved.
    fn migrate(&self) -> Result<bool, SwapError> {
        let Some(run) = self.state.lock().next_migration(MIGRATION_PAGES) else { return Ok(false) };
        let read = self.read_all(&run);
        let moved = self.move_read(&run, &read);
        self.unpin(self.state.lock(), &run);
        let moved = moved?;
        read.into_iter().find_map(Result::err).map_or(Ok(moved), Err)
    }

    /// Reads the pages of a run that still have their slots: in one request, or one by one if that fails. Returns
    /// each page or its error; `None` for slots without a page.
    fn read_all(&self, run: &SlotRun) -> Vec<Result<Option<(PageNo, Page)>, SwapError>> {
        let owners = self.owners(run);
        let into = (0..run.pages).map(|_| Buf::scratch(PAGE_BYTES)).collect();
        let request = Request { op: Op::Read { into }, at: run.at, tag: tag(Cause::Move) };
        let done = self.disk(run.side).run(vec![request]).into_iter().next();
        if let Some(Ok(bufs)) = done.map(|done| done.result) {
            let page = |(owner, buf): (&Option<PageNo>, Buf)| Ok(owner.map(|owner| (owner, buf.freeze())));
            return owners.iter().zip(bufs).map(page).collect();
        }
        let single = |index: usize| {
            let Some(page) = owners[index] else { return Ok(None) };
            let read = self.disk(run.side).read(page_at(run, index), PAGE_BYTES, tag(Cause::Move));
            let read = read.map_err(|source| SwapError::Device { page, source });
            self.state.lock().counters.read_errors += u64::from(read.is_err());
            read.map(|buf| Some((page, buf.freeze())))
        };
        (0..run.pages as usize).map(single).collect()
    }

    /// Writes the pages that were read to new slots, run by run.
    fn move_read(&self, from: &SlotRun, read: &[Result<Option<(PageNo, Page)>, SwapError>]) -> Result<bool, SwapError> {
        let mut moved = false;
        let mut index = 0;
        while index < read.len() {
            let pages: Vec<(PageNo, Page)> =
                read[index..].iter().map_while(|page| page.as_ref().ok()?.clone()).collect();
            if pages.is_empty() {
                index += 1;
                continue;
            }
            let mut batch = Batch::new();
            let purpose = Purpose::Move { from: SlotNo(from.first.0 + index as u32) };
            if !self.find_slots(&pages, purpose, &mut batch)? {
                break;
            }
            self.write(&pages[..batch.pages()], &batch, purpose).into_result()?;
            index += batch.pages();
            moved = true;
        }
        Ok(moved)
    }
}
