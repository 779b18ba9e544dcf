//! A stand-in for NS2's wireless demo with 490 nodes: a discrete-event simulator whose memory is nodes and packets.
//!
//! Not the program's own references, of which there is no recording: at each event a node drawn at
//! random sends; its state is written to, a packet is taken from a ring of packets in use, and the
//! neighbours within reach, drawn as a run of nodes beside it, have a part of their state read and
//! written. The figures give a memory of 160 MiB and little locality, which is what the paper needs
//! of it: page-outs.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::Touch;
use crate::error::Result;
use crate::memory::Access;

/// Pages of a node's state: queues, routing table, trace buffers.
const NODE_PAGES: u64 = 72;
/// Of those, pages that an event at the node itself touches.
const SENDER_PAGES: u64 = 6;
/// Number of nodes within reach of a node.
const NEIGHBOURS: u64 = 10;
/// Divisor of the memory that packets take.
const PACKETS_SHARE: u64 = 8;
/// Processor time of an event with its receptions, in nanoseconds.
const EVENT_NS: u64 = 120_000;

/// A run of the stand-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ns2 {
    /// Number of simulated nodes.
    pub nodes: u64,
    /// Number of events in the run.
    pub events: u64,
    /// Seed of the events.
    pub seed: u64,
}

impl Ns2 {
    /// Returns the pages it needs.
    pub fn pages(&self) -> u32 {
        (self.node_pages() + self.packet_pages()) as u32
    }

    fn node_pages(&self) -> u64 {
        self.nodes * NODE_PAGES
    }

    fn packet_pages(&self) -> u64 {
        (self.node_pages() / PACKETS_SHARE).max(1)
    }

    /// Runs the stand-in.
    ///
    /// # Errors
    /// Fails if the swap fails.
    pub fn run(&self, process: &impl Touch) -> Result<()> {
        let mut rng = Pcg64Mcg::seed_from_u64(self.seed);
        for page in 0..self.node_pages() {
            process.touch(page, Access::Write)?;
        }
        for event in 0..self.events {
            let sender = rng.random_range(0..self.nodes);
            let at = rng.random_range(0..NODE_PAGES);
            for page in 0..SENDER_PAGES {
                process.touch(sender * NODE_PAGES + (at + page) % NODE_PAGES, Access::Write)?;
            }
            process.touch(self.node_pages() + event / 8 % self.packet_pages(), Access::Write)?;
            for neighbour in 1..=NEIGHBOURS {
                let node = (sender + neighbour) % self.nodes;
                process.touch(node * NODE_PAGES, Access::Write)?;
            }
            process.compute(EVENT_NS);
        }
        Ok(())
    }
}
