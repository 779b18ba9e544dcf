//! [`SsdDrive`]: commands, link, write buffer, translation and chips together.
//!
//! Link and chips work at the same time: of a transfer the slower of the two counts. A written page is handed to its
//! die at once; while the buffer has room the host need not wait for it. Room comes back as pages are programmed.
//!
//! Invariants:
//! 1. At most `depth` commands are under way. They begin in order of arrival and may end in any.
//! 2. At most `buffer_pages` written pages are accepted and not programmed.
//! 3. A flush ends when everything accepted before is programmed, and nothing begins meanwhile.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use moafs_runtime::Time;

use super::super::flash::FlashCounters;
use super::super::flash::chips::{Chips, Op, Rate};
use super::super::flash::log_blocks::LogBlocks;
use super::super::flash::page_map::PageMap;
use super::super::flash::precondition;
use super::super::parameter::{KindSpec, ms_to_ns};
use super::super::service::{Command, Service, Verb};
use super::super::spec::SpecError;
use super::spec::{Mapping, SsdSpec};
use crate::SECTOR;

/// FAST erases the data block that a merge replaces.
const MERGE_ERASES: u32 = 1;

/// A solid state disk.
#[derive(Debug, Clone)]
pub struct SsdDrive {
    sectors: u64,
    page_sectors: u64,
    overhead_ns: u64,
    read_rate: Rate,
    write_rate: Rate,
    trim: bool,
    depth: usize,
    buffer_pages: usize,
    chips: Chips,
    ftl: Ftl,
    /// Pages accepted and not programmed as of the last command: the first to be programmed on top.
    buffer: BinaryHeap<Reverse<Op>>,
    /// End times of the commands under way: the first on top.
    under_way: BinaryHeap<Reverse<u64>>,
    /// The time at which the next command may begin.
    free_ns: u64,
    /// The time at which the link has carried all data given to it.
    link_ns: u64,
}

#[derive(Debug, Clone)]
enum Ftl {
    Page(PageMap),
    Fast(LogBlocks),
}

impl Ftl {
    fn new(spec: &SsdSpec) -> Ftl {
        let (flash, ftl) = (&spec.flash, &spec.ftl);
        let pages = flash.host_pages(spec.sectors) as u32;
        match ftl.mapping {
            Mapping::Page => Ftl::Page(PageMap::new(flash, pages, ftl.free_blocks_min, ftl.copies_apart)),
            Mapping::Fast => Ftl::Fast(LogBlocks::new(flash, pages, 1, ftl.log_superblocks - 1, MERGE_ERASES)),
        }
    }

    /// Writes the pages below `end` in order, before time 0.
    fn fill(&mut self, end: u32, chips: &mut Chips) {
        match self {
            Ftl::Page(map) => map.fill(end, chips),
            Ftl::Fast(logs) => logs.fill(end),
        }
    }

    fn write(&mut self, page: u32, ready_ns: u64, chips: &mut Chips) -> Op {
        match self {
            Ftl::Page(map) => map.write(page, ready_ns, chips),
            Ftl::Fast(logs) => logs.write(page, true, ready_ns, chips),
        }
    }

    fn die_of(&self, page: u32) -> Option<usize> {
        match self {
            Ftl::Page(map) => map.die_of(page),
            Ftl::Fast(logs) => logs.die_of(page),
        }
    }

    fn trim(&mut self, page: u32, chips: &mut Chips) {
        match self {
            Ftl::Page(map) => map.trim(page, chips),
            Ftl::Fast(logs) => logs.trim(page, chips),
        }
    }
}

/// The part of a command that concerns one page.
#[derive(Debug, Clone, Copy)]
struct PagePart {
    page: u32,
    bytes: u64,
    whole: bool,
}

impl SsdDrive {
    /// Makes a drive at time 0, preconditioned.
    ///
    /// # Errors
    /// [`SpecError::Value`] for a specification that was not checked and is not sound.
    pub fn new(spec: &SsdSpec) -> Result<SsdDrive, SpecError> {
        spec.check()?;
        let mut chips = Chips::new(&spec.flash);
        let mut ftl = Ftl::new(spec);
        let filled = precondition::filled(&spec.precondition, spec.flash.host_pages(spec.sectors) as u32);
        ftl.fill(filled, &mut chips);
        for page in precondition::overwritten(&spec.precondition, filled) {
            ftl.write(page, 0, &mut chips);
        }
        chips.restart();
        let buffer_bytes = if spec.cache.write { u64::from(spec.cache.dirty_kib) << 10 } else { 0 };
        Ok(SsdDrive {
            sectors: spec.sectors,
            page_sectors: spec.flash.page_sectors(),
            overhead_ns: ms_to_ns(spec.overhead_ms),
            read_rate: Rate::mb_s(spec.read_mb_s),
            write_rate: Rate::mb_s(spec.write_mb_s),
            trim: spec.trim,
            depth: spec.ncq_depth as usize,
            buffer_pages: (buffer_bytes / spec.flash.page_bytes()) as usize,
            chips,
            ftl,
            buffer: BinaryHeap::new(),
            under_way: BinaryHeap::new(),
            free_ns: 0,
            link_ns: 0,
        })
    }

    /// Returns the capacity in sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns the time at which the drive takes the next command.
    pub fn free_at(&self) -> Time {
        Time(self.free_ns)
    }

    /// Returns the flash operations since time 0.
    pub fn flash(&self) -> FlashCounters {
        self.chips.counters
    }

    /// Returns the number of written sectors that a power cut would lose at the time the next
    /// command may begin.
    pub fn dirty_sectors(&self) -> u64 {
        let waits = |Reverse(op): &&Reverse<Op>| op.ends_ns > self.free_ns;
        self.buffer.iter().filter(waits).count() as u64 * self.page_sectors
    }

    /// Serves a command that arrived at `now` and lies on the drive; times do not go back from call to call.
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
            Verb::Write if self.buffer_pages > 0 => self.write(ready_ns, &command, &mut service),
            Verb::Write | Verb::WriteFua => self.write_through(ready_ns, &command, &mut service),
        };
        self.take_up(ready_ns, finished_ns);
        if command.verb == Verb::Flush {
            self.free_ns = finished_ns;
        }
        service.finished = Time(finished_ns);
        service
    }

    /// Records a command under way; the next one may begin when the electronics are free and fewer than `depth` are
    /// under way.
    fn take_up(&mut self, ready_ns: u64, finished_ns: u64) {
        self.free_ns = ready_ns;
        self.under_way.push(Reverse(finished_ns));
        if self.under_way.len() >= self.depth {
            let ends_ns = self.under_way.pop().map_or(0, |Reverse(ends_ns)| ends_ns);
            self.free_ns = self.free_ns.max(ends_ns);
        }
    }

    fn pieces(&self, command: &Command) -> impl Iterator<Item = PagePart> + use<> {
        let (at, end, page_sectors, last) = (command.at.0, command.end(), self.page_sectors, self.sectors);
        (at / page_sectors..end.div_ceil(page_sectors)).map(move |page| {
            let page_start = page * page_sectors;
            let page_end = (page_start + page_sectors).min(last);
            let sectors = end.min(page_end) - at.max(page_start);
            let whole = sectors == page_end - page_start;
            PagePart { page: page as u32, bytes: sectors * SECTOR as u64, whole }
        })
    }

    fn read(&mut self, ready_ns: u64, command: &Command, service: &mut Service) -> u64 {
        let mut last = Op { ends_ns: ready_ns, ..Op::default() };
        for piece in self.pieces(command) {
            if let Some(die) = self.ftl.die_of(piece.page) {
                last = last.max(self.chips.read(die, ready_ns, piece.bytes));
                service.cached = false;
            }
        }
        charge(service, ready_ns, last);
        self.link(ready_ns, last.ends_ns, self.read_rate, command, service)
    }

    /// Serves a write that is done when its pages are in the buffer.
    fn write(&mut self, ready_ns: u64, command: &Command, service: &mut Service) -> u64 {
        let mut now_ns = ready_ns;
        for piece in self.pieces(command) {
            now_ns = self.make_room(now_ns, self.buffer_pages - 1, service);
            let op = self.program(piece, now_ns);
            self.buffer.push(Reverse(op));
        }
        self.link(ready_ns, now_ns, self.write_rate, command, service)
    }

    fn write_through(&mut self, ready_ns: u64, command: &Command, service: &mut Service) -> u64 {
        let mut last = Op { ends_ns: ready_ns, ..Op::default() };
        for piece in self.pieces(command) {
            last = last.max(self.program(piece, ready_ns));
            service.cached = false;
        }
        charge(service, ready_ns, last);
        self.link(ready_ns, last.ends_ns, self.write_rate, command, service)
    }

    /// Programs a page; the part of it that the command does not write is read first.
    fn program(&mut self, piece: PagePart, ready_ns: u64) -> Op {
        self.chips.counters.host_bytes += piece.bytes;
        let old = if piece.whole { None } else { self.ftl.die_of(piece.page) };
        let bytes = self.page_sectors * SECTOR as u64 - piece.bytes;
        let ready_ns = old.map_or(ready_ns, |die| self.chips.read(die, ready_ns, bytes).ends_ns);
        self.ftl.write(piece.page, ready_ns, &mut self.chips)
    }

    /// Waits until at most `left` pages of the buffer are not programmed; returns the time at which
    /// that is so.
    fn make_room(&mut self, ready_ns: u64, left: usize, service: &mut Service) -> u64 {
        let mut now_ns = ready_ns;
        while self.buffer.peek().is_some_and(|Reverse(op)| op.ends_ns <= now_ns || self.buffer.len() > left) {
            let Some(Reverse(op)) = self.buffer.pop() else { break };
            let waited_ns = op.ends_ns.saturating_sub(now_ns);
            let gc_ns = op.gc_ns.min(waited_ns);
            (service.gc_ns, service.wait_ns) = (service.gc_ns + gc_ns, service.wait_ns + waited_ns - gc_ns);
            now_ns += waited_ns;
        }
        now_ns
    }

    fn flush(&mut self, ready_ns: u64, service: &mut Service) -> u64 {
        let programmed_ns = self.make_room(ready_ns, 0, service);
        let finished_ns = self.under_way.iter().map(|Reverse(ends_ns)| *ends_ns).fold(programmed_ns, u64::max);
        service.wait_ns += finished_ns - programmed_ns;
        finished_ns
    }

    /// Discards whole pages only.
    fn discard(&mut self, ready_ns: u64, command: &Command) -> u64 {
        if self.trim {
            for piece in self.pieces(command).filter(|piece| piece.whole) {
                self.ftl.trim(piece.page, &mut self.chips);
            }
        }
        ready_ns
    }

    /// Carries the data over the link while the chips work, until `chips_ns`; returns the time at
    /// which both are done.
    fn link(&mut self, ready_ns: u64, chips_ns: u64, rate: Rate, command: &Command, service: &mut Service) -> u64 {
        self.link_ns = self.link_ns.max(ready_ns) + rate.ns(command.sectors * SECTOR as u64);
        let finished_ns = chips_ns.max(self.link_ns);
        service.bus_ns = finished_ns - chips_ns;
        finished_ns
    }
}

/// Charges a command with its last operation on the chips.
fn charge(service: &mut Service, ready_ns: u64, last: Op) {
    let took_ns = last.ends_ns - ready_ns;
    service.gc_ns = last.gc_ns.min(took_ns);
    service.wait_ns = last.wait_ns.min(took_ns - service.gc_ns);
    service.transfer_ns = took_ns - service.gc_ns - service.wait_ns;
}
