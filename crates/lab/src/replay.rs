//! Replays a trace on a modelled drive: computes the end of each request, and the parts of its
//! time.
//!
//! Arrivals are open: a request comes at its time in the trace, whether or not those before are
//! done. It waits at the host in the order asked for. When the drive is idle a request goes to it
//! at once; so of a burst at one instant the first goes first, and the rest is sorted.

use std::io::BufRead;

use moafs_disk::model::queue::Finished;
use moafs_disk::model::{DriveQueue, DriveSpec, FlashCounters, HostQueue, Policy, SpecError, Totals, Verb};
use moafs_runtime::Time;
use serde::Serialize;

use crate::trace::{Entry, Reader, TraceError};

/// An error of a replay.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The drive cannot be loaded.
    #[error(transparent)]
    Drive(#[from] SpecError),
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// The result of a replay. Means are over all reads and writes; flushes are counted apart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// From the trace's time zero to the end of the last request.
    pub total_ms: f64,
    /// Number of reads and writes.
    pub requests: u64,
    /// Number of reads in the trace.
    pub reads: u64,
    /// Number of writes in the trace.
    pub writes: u64,
    /// Number of flushes in the trace.
    pub flushes: u64,
    /// From the drive's start on a request to its end.
    pub mean_service_ms: f64,
    /// Standard deviation of the service time.
    pub stddev_service_ms: f64,
    /// From a request's arrival to its end.
    pub mean_response_ms: f64,
    /// Longest response time of a request.
    pub max_response_ms: f64,
    /// From a request's arrival to the drive's start on it.
    pub mean_queue_ms: f64,
    /// Mean overhead of the drive's electronics.
    pub mean_overhead_ms: f64,
    /// Waiting for the drive's buffer or its background work.
    pub mean_wait_ms: f64,
    /// Copies and erases of a flash drive.
    pub mean_gc_ms: f64,
    /// Moving the arm to the first sector's track.
    pub mean_seek_ms: f64,
    /// Mean wait for the first sector to pass under the head.
    pub mean_rotation_ms: f64,
    /// Sectors passing, track crossings included.
    pub mean_transfer_ms: f64,
    /// Mean time on the bus, where it does not overlap.
    pub mean_bus_ms: f64,
    /// Requests answered without an access of their own to the media.
    pub cached: u64,
    /// Requests for which the arm moved to another cylinder.
    pub seeks: u64,
    /// Mean distance of the seeks, in sectors from the end of the access before to the first of
    /// these.
    pub mean_seek_sectors: f64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Time without a request at the drive.
    pub idle_ms: f64,
    /// Work of the flash; `None` for a hard disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flash: Option<FlashCounters>,
    /// Bytes programmed per byte written; `None` for a hard disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_amplification: Option<f64>,
}

/// Sums over the completed requests.
#[derive(Default)]
struct Sums {
    totals: Totals,
    service_ns: u128,
    /// Sum of the squares of service times.
    service_ns2: u128,
    response_ns: u128,
    response_ns_max: u64,
    queue_ns: u128,
    end: Time,
}

impl Sums {
    fn add(&mut self, finished: &Finished<Time>) {
        let Finished { id: asked, command, service, .. } = finished;
        self.end = self.end.max(service.finished);
        if command.verb == Verb::Flush {
            self.totals.flushes += 1;
            return;
        }
        self.totals.add(command, *asked, service);
        let (service_ns, response_ns) = (service.service_ns(), service.finished.0 - asked.0);
        self.service_ns += u128::from(service_ns);
        self.service_ns2 += u128::from(service_ns).pow(2);
        self.response_ns += u128::from(response_ns);
        self.response_ns_max = self.response_ns_max.max(response_ns);
        self.queue_ns += u128::from(service.started.0 - asked.0);
    }

    fn summary(&self, flash: Option<FlashCounters>) -> Summary {
        let totals = &self.totals;
        let mean = |ns: u128| ns as f64 / 1e6 / (totals.requests.max(1)) as f64;
        let mean_of = |ns: u64| mean(u128::from(ns));
        let mean_service_ms = mean(self.service_ns);
        // The variance is computed in whole numbers, so that nothing is lost when large ones are
        // subtracted: n Σx² - (Σx)² over n².
        let n = u128::from(totals.requests.max(1));
        let spread =
            (n.saturating_mul(self.service_ns2)).saturating_sub(self.service_ns.saturating_mul(self.service_ns));
        Summary {
            total_ms: self.end.0 as f64 / 1e6,
            requests: totals.requests,
            reads: totals.reads,
            writes: totals.writes,
            flushes: totals.flushes,
            mean_service_ms,
            stddev_service_ms: (spread as f64).sqrt() / n as f64 / 1e6,
            mean_response_ms: mean(self.response_ns),
            max_response_ms: self.response_ns_max as f64 / 1e6,
            mean_queue_ms: mean(self.queue_ns),
            mean_overhead_ms: mean_of(totals.overhead_ns),
            mean_wait_ms: mean_of(totals.wait_ns),
            mean_gc_ms: mean_of(totals.gc_ns),
            mean_seek_ms: mean_of(totals.seek_ns),
            mean_rotation_ms: mean_of(totals.rotation_ns),
            mean_transfer_ms: mean_of(totals.transfer_ns),
            mean_bus_ms: mean_of(totals.bus_ns),
            cached: totals.cached,
            seeks: totals.seeks,
            mean_seek_sectors: totals.seek_sectors as f64 / totals.seeks.max(1) as f64,
            read_bytes: totals.read_bytes,
            written_bytes: totals.written_bytes,
            idle_ms: totals.idle_ns as f64 / 1e6,
            flash,
            write_amplification: flash.map(|flash| flash.write_amplification()),
        }
    }
}

/// Replays a trace on a drive, with the order `policy` at the host.
///
/// # Errors
/// The first line of the trace that is wrong, or that asks for sectors the drive does not have.
pub fn replay<R: BufRead>(spec: &DriveSpec, policy: Policy, trace: Reader<R>) -> Result<Summary, ReplayError> {
    let mut drive = DriveQueue::new(spec)?;
    let mut host = HostQueue::new(policy);
    let mut sums = Sums::default();
    let mut trace = Arrivals { trace, sectors: spec.sectors(), next: None };
    trace.advance()?;
    loop {
        let free = drive.drive().free_at();
        let is_idle = host.is_empty() && drive.is_empty() && trace.next.is_some_and(|next| next.time >= free);
        let now = if is_idle { trace.next.map_or(free, |next| next.time) } else { free };
        while let Some(entry) = trace.next.filter(|entry| entry.time <= now) {
            host.push(entry.time, entry.command);
            trace.advance()?;
            if is_idle {
                break;
            }
        }
        while drive.has_room() {
            let Some((asked, command)) = host.pop(drive.drive(), now) else { break };
            drive.push(asked, now, command);
        }
        let Some(finished) = drive.serve() else { return Ok(sums.summary(drive.drive().flash())) };
        sums.totals.idle_ns += finished.service.started.0.saturating_sub(sums.end.0);
        sums.add(&finished);
    }
}

/// A trace whose next entry can be looked at, and which stays on the drive.
struct Arrivals<R> {
    trace: Reader<R>,
    sectors: u64,
    next: Option<Entry>,
}

impl<R: BufRead> Arrivals<R> {
    fn advance(&mut self) -> Result<(), TraceError> {
        self.next = self.trace.next().transpose()?;
        match self.next {
            Some(Entry { command, line, .. }) if command.end() > self.sectors => {
                let (at, sectors) = (command.at.0, command.sectors);
                let problem = format!("{at} + {sectors} goes beyond the drive's {} sectors", self.sectors);
                Err(self.trace.malformed(line, "sector", problem))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
