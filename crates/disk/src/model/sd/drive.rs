//! [`SdDrive`]: commands, bus, the page being collected, translation and chips together.
//!
//! One command at a time, and it ends when the chips are done. Whole pages stream from the bus into the chips: of the
//! two the slower counts. A part of a page must have come before it is programmed, and takes a log page for itself,
//! unless it goes on where the write before ended in that page: then the card collects, and programs when the page is
//! full, when another page is written, or at a flush.

use moafs_runtime::Time;

use super::super::flash::FlashCounters;
use super::super::flash::chips::{Chips, Op, Rate};
use super::super::flash::log_blocks::LogBlocks;
use super::super::flash::precondition;
use super::super::parameter::{KindSpec, ms_to_ns};
use super::super::service::{Command, Service, Verb};
use super::super::spec::SpecError;
use super::spec::SdSpec;
use crate::SECTOR;

/// Erases of a merge: the unit it writes to, before, and the unit it replaces, after.
const MERGE_ERASES: u32 = 2;

/// An SD card's state: chips, translation, and the page being collected.
#[derive(Debug, Clone)]
pub struct SdDrive {
    sectors: u64,
    page_sectors: u64,
    overhead_ns: u64,
    bus: Rate,
    trim: bool,
    chips: Chips,
    units: LogBlocks,
    stream: Stream,
    /// The time the command before was done.
    free_ns: u64,
}

/// Writes of parts of a page, each continuing where the one before ended.
#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    page: u32,
    /// The sectors from here to `end` were written; none if they are equal.
    start: u64,
    end: u64,
    /// The number of trailing sectors that are collected and not yet programmed.
    collected: u64,
}

/// The part of a command that concerns one page.
#[derive(Debug, Clone, Copy)]
struct PagePart {
    page: u32,
    start: u64,
    end: u64,
    /// True if it begins where the page begins.
    from_start: bool,
    /// True if it ends where the page ends.
    to_end: bool,
}

impl PagePart {
    fn bytes(&self) -> u64 {
        (self.end - self.start) * SECTOR as u64
    }

    fn is_whole(&self) -> bool {
        self.from_start && self.to_end
    }
}

impl SdDrive {
    /// Makes a card at time 0, preconditioned.
    ///
    /// # Errors
    /// [`SpecError::Value`] for a specification that was not checked and is not sound.
    pub fn new(spec: &SdSpec) -> Result<SdDrive, SpecError> {
        spec.check()?;
        let (flash, ftl) = (&spec.flash, &spec.ftl);
        let pages = flash.host_pages(spec.sectors) as u32;
        let mut chips = Chips::new(flash);
        let mut units = LogBlocks::new(flash, pages, ftl.sequential_units, ftl.random_units - 1, MERGE_ERASES);
        let filled = precondition::filled(&spec.precondition, pages);
        units.fill(filled);
        for page in precondition::overwritten(&spec.precondition, filled) {
            units.write(page, true, 0, &mut chips);
        }
        chips.restart();
        Ok(SdDrive {
            sectors: spec.sectors,
            page_sectors: flash.page_sectors(),
            overhead_ns: ms_to_ns(spec.overhead_ms),
            bus: Rate::mb_s(spec.bus_mb_s),
            trim: spec.trim,
            chips,
            units,
            stream: Stream::default(),
            free_ns: 0,
        })
    }

    /// Returns the capacity in sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns the time at which the card is done with the commands so far.
    pub fn free_at(&self) -> Time {
        Time(self.free_ns)
    }

    /// Returns the flash operations since time 0.
    pub fn flash(&self) -> FlashCounters {
        self.chips.counters
    }

    /// Returns the number of written sectors that a power cut would lose: part of a page that is
    /// being collected.
    pub fn dirty_sectors(&self) -> u64 {
        self.stream.collected
    }

    /// Serves a command that arrived at `now` and lies on the card; times do not go back from call to call.
    pub fn execute(&mut self, now: Time, command: Command) -> Service {
        let started_ns = now.0.max(self.free_ns);
        let ready_ns = started_ns + self.overhead_ns;
        let mut service =
            Service { started: Time(started_ns), overhead_ns: self.overhead_ns, cached: true, ..Service::default() };
        self.chips.begin_command();
        let finished_ns = match command.verb {
            Verb::Flush => self.flush(ready_ns, &mut service),
            Verb::Discard => self.discard(ready_ns, &command),
            Verb::Read => self.read(ready_ns, &command, &mut service),
            Verb::Write | Verb::WriteFua => self.write(ready_ns, &command, &mut service),
        };
        self.free_ns = finished_ns;
        service.finished = Time(finished_ns);
        service
    }

    fn pieces(&self, command: &Command) -> impl Iterator<Item = PagePart> + use<> {
        let (at, end, page_sectors, last) = (command.at.0, command.end(), self.page_sectors, self.sectors);
        (at / page_sectors..end.div_ceil(page_sectors)).map(move |page| {
            let page_start = page * page_sectors;
            let page_end = (page_start + page_sectors).min(last);
            let (start, end) = (at.max(page_start), end.min(page_end));
            PagePart { page: page as u32, start, end, from_start: start == page_start, to_end: end == page_end }
        })
    }

    /// Reads pages: the first must be in the card's register before the bus begins; the chips then keep ahead, or delay
    /// the bus.
    fn read(&mut self, ready_ns: u64, command: &Command, service: &mut Service) -> u64 {
        let mut bus_ns = ready_ns;
        let mut chips_ns = 0;
        for piece in self.pieces(command) {
            let mut read_ns = ready_ns;
            if let Some(die) = self.units.die_of(piece.page) {
                let op = self.chips.read(die, ready_ns, piece.bytes());
                (read_ns, service.gc_ns, service.cached) = (op.ends_ns, op.gc_ns, false);
            }
            // The bus stands still while it waits for a page.
            chips_ns += read_ns.saturating_sub(bus_ns);
            bus_ns = bus_ns.max(read_ns) + self.bus.ns(piece.bytes());
        }
        service.gc_ns = service.gc_ns.min(chips_ns);
        service.transfer_ns = chips_ns - service.gc_ns;
        service.bus_ns = bus_ns - ready_ns - chips_ns;
        bus_ns
    }

    fn write(&mut self, ready_ns: u64, command: &Command, service: &mut Service) -> u64 {
        let part_bytes: u64 = self.pieces(command).filter(|piece| !piece.is_whole()).map(|piece| piece.bytes()).sum();
        let collected_ns = ready_ns + self.bus.ns(part_bytes);
        let mut last = None;
        for piece in self.pieces(command) {
            self.chips.counters.host_bytes += piece.bytes();
            last = self.take(piece, collected_ns).or(last);
        }
        service.cached = last.is_none();
        let chips_ns = last.map_or(0, |op: Op| op.ends_ns - collected_ns);
        let finished_ns = (ready_ns + self.bus.ns(command.sectors * SECTOR as u64)).max(collected_ns + chips_ns);
        service.gc_ns = last.map_or(0, |op| op.gc_ns.min(chips_ns));
        service.transfer_ns = chips_ns - service.gc_ns;
        service.bus_ns = finished_ns - ready_ns - chips_ns;
        finished_ns
    }

    /// Collects or programs part of a page or a whole one; returns the last chip operation, if any
    /// was needed.
    fn take(&mut self, piece: PagePart, ready_ns: u64) -> Option<Op> {
        let same_page = self.stream.page == piece.page;
        let goes_on = same_page && !piece.from_start && self.stream.end == piece.start;
        let replaces = same_page && piece.is_whole();
        let before = if goes_on || replaces { None } else { self.program_collected(ready_ns) };
        let start = if goes_on { self.stream.start } else { piece.start };
        let collected = if goes_on { self.stream.collected } else { 0 } + piece.end - piece.start;
        self.stream = Stream { page: piece.page, start, end: piece.end, collected };
        match goes_on && !piece.to_end {
            true => before,
            false => self.program_collected(ready_ns),
        }
    }

    /// Programs the collected sectors, as a whole page if they reach over all of it.
    fn program_collected(&mut self, ready_ns: u64) -> Option<Op> {
        if self.stream.collected == 0 {
            return None;
        }
        self.stream.collected = 0;
        let Stream { page, start, end, .. } = self.stream;
        let page_start = u64::from(page) * self.page_sectors;
        let whole = start == page_start && end == (page_start + self.page_sectors).min(self.sectors);
        Some(self.units.write(page, whole, ready_ns, &mut self.chips))
    }

    fn flush(&mut self, ready_ns: u64, service: &mut Service) -> u64 {
        let Some(op) = self.program_collected(ready_ns) else { return ready_ns };
        let took_ns = op.ends_ns - ready_ns;
        service.gc_ns = op.gc_ns.min(took_ns);
        service.wait_ns = took_ns - service.gc_ns;
        op.ends_ns
    }

    /// Discards whole pages only; a page that is being collected is programmed first.
    fn discard(&mut self, ready_ns: u64, command: &Command) -> u64 {
        if !self.trim {
            return ready_ns;
        }
        let finished_ns = self.program_collected(ready_ns).map_or(ready_ns, |op| op.ends_ns);
        for piece in self.pieces(command).filter(PagePart::is_whole) {
            self.units.trim(piece.page, &mut self.chips);
        }
        finished_ns
    }
}
