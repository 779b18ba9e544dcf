//! [`HddDrive`]: commands, buffer and mechanics together.
//!
//! The drive's background work between commands (reading ahead, writing out its buffer) is computed when the next
//! command arrives. Invariants:
//!
//! 1. After `catch_up(t)` all work that the mechanism would have begun before `t` is done or under way.
//! 2. Reading ahead ends when a command needs the mechanism; a destage under way is finished first.
//! 3. Reads go before read-ahead, read-ahead before destaging. Destaging takes at most [`DESTAGE_SECTORS`] at a time.
//! 4. A write updates what the read segments hold of it, so these stay valid.

use moafs_runtime::Time;

use super::super::parameter::ms_to_ns;
use super::super::service::{Command, Service, Verb};
use super::super::spec::SpecError;
use super::buffer::{Dirty, Segments};
use super::mechanics::{Access, Mechanics};
use super::spec::HddSpec;
use crate::{Lba, SECTOR};

/// The most sectors destaged before the mechanism looks for more urgent work: the largest 28-bit ATA transfer.
pub const DESTAGE_SECTORS: u64 = 256;

/// A hard disk's state: mechanics, buffer and background work.
#[derive(Debug, Clone)]
pub struct HddDrive {
    mechanics: Mechanics,
    sectors: u64,
    overhead_ns: u64,
    bus_bytes_per_s: Option<u64>,
    read_cache: bool,
    read_ahead: bool,
    dirty_sectors_max: u64,
    destage_window: usize,
    segments: Segments,
    dirty: Dirty,
    /// The time the command before was done.
    free_ns: u64,
    /// The time from which the mechanism has been idle, as computed so far.
    idle_ns: u64,
    ahead: Option<Ahead>,
    destage: Option<Destage>,
    background: Background,
}

/// A read-ahead under way: the end of the segment was read at `at_ns`.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    segment: usize,
    at_ns: u64,
    limit: u64,
}

/// An extent of the buffer being written.
#[derive(Debug, Clone, Copy)]
struct Destage {
    start: u64,
    end: u64,
    ends_ns: u64,
}

moafs_runtime::counters! {
    /// A drive's work in the background.
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct Background {
        /// Sectors read ahead, in total.
        ahead_sectors: u64,
        /// Number of extents of the buffer written to the media.
        destages: u64,
        /// Sectors of these extents.
        destage_sectors: u64,
        /// Number of destages for which the arm moved to another cylinder.
        destage_seeks: u64,
        /// Time of all destages in nanoseconds.
        destage_ns: u64,
    }
}

impl HddDrive {
    /// Makes a drive at time 0: the arm outermost, the buffer empty.
    ///
    /// # Errors
    /// [`SpecError::Value`] for a specification that was not checked and is not sound.
    pub fn new(spec: &HddSpec) -> Result<HddDrive, SpecError> {
        let mechanics = Mechanics::new(spec)?;
        let cache = &spec.cache;
        let dirty_bytes = if cache.write { u64::from(cache.dirty_kib) << 10 } else { 0 };
        Ok(HddDrive {
            mechanics,
            sectors: spec.sectors,
            overhead_ns: ms_to_ns(spec.overhead_ms),
            bus_bytes_per_s: spec.bus_mb_s.is_finite().then_some((spec.bus_mb_s * 1e6) as u64),
            read_cache: cache.read,
            read_ahead: cache.read && cache.read_ahead,
            dirty_sectors_max: dirty_bytes / SECTOR as u64,
            destage_window: cache.destage_window as usize,
            segments: Segments::new(cache.segments, cache.segment_sectors),
            dirty: Dirty::default(),
            free_ns: 0,
            idle_ns: 0,
            ahead: None,
            destage: None,
            background: Background::default(),
        })
    }

    /// Returns the capacity in sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns the time at which the drive is done with the commands so far.
    pub fn free_at(&self) -> Time {
        Time(self.free_ns)
    }

    /// Returns the drive's background work, as computed up to its last command.
    pub fn background(&self) -> Background {
        self.background
    }

    /// Returns the number of written sectors that a power cut would lose, as computed up to the
    /// last command.
    pub fn dirty_sectors(&self) -> u64 {
        self.dirty.sectors() + self.destage.map_or(0, |d| d.end - d.start)
    }

    /// Returns the nanoseconds that `command`, begun at `now`, would take until its first sector has passed under the
    /// head, without the buffer.
    pub fn positioning_ns(&self, now: Time, command: &Command) -> u64 {
        match command.verb {
            Verb::Flush | Verb::Discard => 0,
            _ if command.sectors == 0 => 0,
            verb => {
                let ready_ns = now.0 + self.overhead_ns;
                self.overhead_ns + self.mechanics.positioning_ns(ready_ns, command.at, verb.is_write())
            }
        }
    }

    /// Returns true if the buffer answers `command` without the mechanism, in its state after the
    /// last command.
    pub fn answers_from_buffer(&self, command: &Command) -> bool {
        let range = command.at.0..command.end();
        match command.verb {
            Verb::Read => {
                let held = |index| self.segments.get(index).end >= range.end;
                self.read_cache && (self.dirty.covers(&range) || self.segments.find(range.start).is_some_and(held))
            }
            Verb::Write => self.dirty_sectors() + command.sectors <= self.dirty_sectors_max,
            Verb::WriteFua | Verb::Flush | Verb::Discard => false,
        }
    }

    /// Serves a command that arrived at `now` and lies on the drive; times do not go back from call to call.
    pub fn execute(&mut self, now: Time, command: Command) -> Service {
        let started_ns = now.0.max(self.free_ns);
        let mut service =
            Service { started: Time(started_ns), overhead_ns: self.overhead_ns, cached: true, ..Service::default() };
        let ready_ns = started_ns + self.overhead_ns;
        let finished_ns = match command.verb {
            Verb::Flush => self.flush(ready_ns, &mut service),
            // A hard disk ignores discards.
            Verb::Discard => ready_ns,
            _ if command.sectors == 0 => ready_ns,
            Verb::Read => self.read(ready_ns, &command, &mut service),
            Verb::Write => self.write(ready_ns, &command, &mut service),
            Verb::WriteFua => self.write_through(ready_ns, &command, &mut service),
        };
        self.free_ns = finished_ns;
        service.finished = Time(finished_ns);
        service
    }

    fn bus_ns(&self, sectors: u64) -> u64 {
        let bytes = sectors * SECTOR as u64;
        let Some(rate) = self.bus_bytes_per_s else { return 0 };
        ((u128::from(bytes) * 1_000_000_000 + u128::from(rate / 2)) / u128::from(rate)) as u64
    }

    fn read(&mut self, ready_ns: u64, command: &Command, service: &mut Service) -> u64 {
        if !self.read_cache {
            return self.read_media(ready_ns, command.at, command.sectors, service);
        }
        self.catch_up(ready_ns);
        let range = command.at.0..command.end();
        let in_flight = self.destage.is_some_and(|d| d.start <= range.start && range.end <= d.end);
        if in_flight || self.dirty.covers(&range) {
            service.bus_ns = self.bus_ns(command.sectors);
            return ready_ns + service.bus_ns;
        }
        let Some(segment) = self.segments.find(range.start) else {
            let segment = self.segments.begin(range.start);
            return self.read_into(segment, range.start, ready_ns, command, service);
        };
        self.segments.touch(segment);
        let limit = self.segments.limit(&range).min(self.sectors);
        let held = self.segments.get(segment).end;
        if let Some(ahead) = self.ahead.as_mut().filter(|ahead| ahead.segment == segment) {
            ahead.limit = ahead.limit.max(limit);
            if range.end > held {
                return self.wait_for_ahead(ready_ns, range.end, service);
            }
        } else if range.end > held {
            return self.read_into(segment, held, ready_ns, command, service);
        } else if self.read_ahead && self.ahead.is_none() && self.segments.runs_low(segment, range.end) {
            let at_ns = self.destage.map_or(ready_ns, |d| d.ends_ns.max(ready_ns));
            self.ahead = Some(Ahead { segment, at_ns, limit });
        }
        service.bus_ns = self.bus_ns(command.sectors);
        ready_ns + service.bus_ns
    }

    /// Waits until read-ahead has reached `end`: it will pass under the head without a new seek.
    fn wait_for_ahead(&mut self, ready_ns: u64, end: u64, service: &mut Service) -> u64 {
        let reached_ns = self.read_on(u64::MAX, end);
        service.wait_ns = reached_ns.saturating_sub(ready_ns);
        service.bus_ns = self.bus_ns(1);
        ready_ns + service.wait_ns + service.bus_ns
    }

    /// Reads from `from`, where the segment ends, to the command's end, and then ahead.
    fn read_into(&mut self, segment: usize, from: u64, ready_ns: u64, command: &Command, service: &mut Service) -> u64 {
        let range = command.at.0..command.end();
        let finished_ns = self.read_media(ready_ns, Lba(from), range.end - from, service);
        self.segments.extend(segment, range.end);
        if self.read_ahead {
            let limit = self.segments.limit(&range).min(self.sectors);
            self.ahead = Some(Ahead { segment, at_ns: self.idle_ns, limit });
        }
        finished_ns
    }

    fn read_media(&mut self, ready_ns: u64, at: Lba, sectors: u64, service: &mut Service) -> u64 {
        self.media(ready_ns, at, sectors, false, service)
    }

    /// Accesses the media for a command. The bus overlaps with it, except for the last sector.
    fn media(&mut self, ready_ns: u64, at: Lba, sectors: u64, write: bool, service: &mut Service) -> u64 {
        let begin_ns = self.seize(ready_ns);
        let access = self.mechanics.access(begin_ns, at, sectors, write);
        self.idle_ns = begin_ns + access.ns();
        service.wait_ns += begin_ns - ready_ns;
        service.seek_ns = access.seek_ns;
        service.rotation_ns = access.rotation_ns;
        service.transfer_ns = access.transfer_ns;
        service.seek_cylinders = access.seek_cylinders;
        service.seek_sectors = access.seek_sectors;
        service.bus_ns = self.bus_ns(1);
        service.cached = false;
        self.idle_ns + service.bus_ns
    }

    /// Takes the mechanism for a command: ends read-ahead, lets a destage under way finish.
    fn seize(&mut self, ready_ns: u64) -> u64 {
        self.catch_up(ready_ns);
        self.ahead = None;
        self.idle_ns = self.destage.take().map_or(ready_ns, |destage| destage.ends_ns.max(ready_ns));
        self.idle_ns
    }

    fn write(&mut self, ready_ns: u64, command: &Command, service: &mut Service) -> u64 {
        if command.sectors > self.dirty_sectors_max {
            return self.write_through(ready_ns, command, service);
        }
        self.catch_up(ready_ns);
        let room_ns = self.make_room(ready_ns, self.dirty_sectors_max - command.sectors);
        service.wait_ns = room_ns - ready_ns;
        service.bus_ns = self.bus_ns(command.sectors);
        let accepted_ns = room_ns + service.bus_ns;
        self.catch_up(accepted_ns);
        self.dirty.insert(command.at.0..command.end());
        accepted_ns
    }

    fn write_through(&mut self, ready_ns: u64, command: &Command, service: &mut Service) -> u64 {
        let finished_ns = self.media(ready_ns, command.at, command.sectors, true, service);
        self.dirty.remove(&(command.at.0..command.end()));
        finished_ns
    }

    fn flush(&mut self, ready_ns: u64, service: &mut Service) -> u64 {
        self.catch_up(ready_ns);
        let finished_ns = self.make_room(ready_ns, 0);
        service.wait_ns = finished_ns - ready_ns;
        finished_ns
    }

    /// Writes out the buffer until at most `left` sectors wait; returns the time at which that is
    /// so.
    fn make_room(&mut self, ready_ns: u64, left: u64) -> u64 {
        let mut now_ns = ready_ns;
        while self.dirty_sectors() > left {
            now_ns = self.seize(now_ns);
            if self.dirty_sectors() > left {
                self.begin_destage();
            }
        }
        now_ns
    }

    /// Computes the background work that the mechanism would have begun before `now`.
    fn catch_up(&mut self, now_ns: u64) {
        loop {
            if let Some(destage) = self.destage {
                if destage.ends_ns > now_ns {
                    return;
                }
                (self.destage, self.idle_ns) = (None, self.idle_ns.max(destage.ends_ns));
            }
            if let Some(ahead) = self.ahead {
                self.read_on(now_ns, ahead.limit);
                if self.ahead.is_some() {
                    return;
                }
            }
            if self.dirty.is_empty() || self.idle_ns >= now_ns {
                self.idle_ns = self.idle_ns.max(now_ns);
                return;
            }
            self.begin_destage();
        }
    }

    /// Reads ahead up to `end`, but no longer than until `now`; returns the time at which the last sector was read. The
    /// read-ahead is over when it reaches its limit.
    fn read_on(&mut self, now_ns: u64, end: u64) -> u64 {
        let Some(mut ahead) = self.ahead else { return now_ns };
        loop {
            let at = self.segments.get(ahead.segment).end;
            if at >= end {
                break;
            }
            let piece = self.mechanics.piece(ahead.at_ns, Lba(at), end - at, false);
            let begin_ns = ahead.at_ns + piece.move_ns + piece.latency_ns;
            let geometry = self.mechanics.geometry();
            let passed = match now_ns.checked_sub(begin_ns) {
                Some(elapsed_ns) => geometry.passed(&piece.place, piece.sectors, elapsed_ns),
                None => 0,
            };
            if passed == 0 {
                break;
            }
            ahead.at_ns = begin_ns + geometry.passing_ns(&piece.place, passed);
            self.mechanics.follow(&piece, Lba(at), passed);
            self.segments.extend(ahead.segment, at + u64::from(passed));
            self.background.ahead_sectors += u64::from(passed);
        }
        if self.segments.get(ahead.segment).end >= ahead.limit {
            (self.ahead, self.idle_ns) = (None, ahead.at_ns);
        } else {
            self.ahead = Some(ahead);
        }
        ahead.at_ns
    }

    /// Begins to write an extent of the buffer at the time the mechanism became idle: the nearest among the oldest.
    fn begin_destage(&mut self) {
        let now_ns = self.idle_ns;
        let mut soonest_ns = u64::MAX;
        let mut nearest = None;
        for extent in self.dirty.oldest(self.destage_window) {
            // Most candidates are ruled out by the arm's move alone.
            if let Some(ns) = self.mechanics.positioning_below(now_ns, Lba(extent.start), true, soonest_ns) {
                (soonest_ns, nearest) = (ns, Some(extent));
            }
        }
        let Some(extent) = nearest else { return };
        let (start, end) = (extent.start, extent.end.min(extent.start + DESTAGE_SECTORS));
        let access: Access = self.mechanics.access(now_ns, Lba(start), end - start, true);
        self.dirty.remove(&(start..end));
        self.destage = Some(Destage { start, end, ends_ns: now_ns + access.ns() });
        self.background.destages += 1;
        self.background.destage_sectors += end - start;
        self.background.destage_seeks += u64::from(access.seek_cylinders != 0);
        self.background.destage_ns += access.ns();
    }
}
