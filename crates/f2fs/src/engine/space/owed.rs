//! Blocks owed to the next checkpoint, and the room that running ops have among them.
//!
//! What waits for the next checkpoint has a place at every moment ([`crate::place::budget`]): dirty
//! metadata are counted here, and ops reserve what they may add ([`Ticket`]).

use std::sync::Arc;

use moafs_runtime::leaf::atomic::Ordering;

use super::area::MainArea;
use super::state::State;
use crate::place::budget::{Blocks, Budget};

/// Room for metadata that a running op may make dirty. Blocks that it has made dirty are counted as
/// such: a ticket is given back when the op has ended.
pub(in crate::engine) struct Ticket {
    space: Arc<MainArea>,
    blocks: Blocks,
    /// The number of this ticket, and what was dirty when it was handed out, if there was no other then.
    alone: Option<(u64, Blocks)>,
}

impl Ticket {
    /// Checks that its op leaves no more dirty than it has room for, if no other op ran meanwhile. Nodes that it
    /// changed and then freed need no room.
    fn check(&self, state: &State) {
        let Some((number, before)) = self.alone else { return };
        if state.tickets_issued != number {
            return;
        }
        let after = self.space.dirty();
        let (nodes, data) = (after.nodes.saturating_sub(before.nodes), after.data.saturating_sub(before.data));
        let fits = nodes <= self.blocks.nodes && data <= self.blocks.data;
        debug_assert!(fits, "{nodes} nodes and {data} blocks became dirty, admitted were {:?}", self.blocks);
    }

    /// Returns the number of nodes that it has room for.
    pub(in crate::engine) fn nodes(&self) -> u64 {
        self.blocks.nodes
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.space.state();
        // No other op can begin while the state is locked.
        if cfg!(debug_assertions) && !std::thread::panicking() {
            self.check(&state);
        }
        state.tickets.nodes -= self.blocks.nodes;
        state.tickets.data -= self.blocks.data;
    }
}

impl MainArea {
    /// Counts a node that has become dirty.
    pub(in crate::engine) fn node_dirtied(&self) {
        self.dirty_nodes.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a dirty node that has found a place, or is gone.
    pub(in crate::engine) fn node_settled(&self) {
        let before = self.dirty_nodes.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "more nodes are settled than were dirty");
    }

    /// Counts a block of a directory that has become dirty.
    pub(in crate::engine) fn block_dirtied(&self) {
        self.dirty_blocks.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts such a block that has found a place, or is gone.
    pub(in crate::engine) fn block_settled(&self) {
        let before = self.dirty_blocks.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "more blocks are settled than were dirty");
    }

    /// Returns the nodes and blocks of directories that are dirty.
    fn dirty(&self) -> Blocks {
        let data = self.dirty_blocks.load(Ordering::Acquire);
        Blocks::new(self.dirty_nodes.load(Ordering::Acquire), data)
    }

    /// Returns what is owed to the next checkpoint, and the places for it.
    pub(in crate::engine) fn budget(&self) -> Budget {
        self.budget_of(&self.state())
    }

    pub(super) fn budget_of(&self, state: &State) -> Budget {
        let Blocks { nodes, data } = self.dirty();
        let data = data + state.remade.names;
        // The node that points to a dirty block changes when that one moves.
        let nodes = nodes + data + state.chained + state.remade.nodes;
        Budget {
            free_segments: state.free_for_logs().into(),
            holes: state.holes,
            owed: Blocks::new(nodes, data) + state.tickets,
        }
    }

    /// Reserves room for metadata that an op may make dirty, if there is as much and `beyond`.
    pub(in crate::engine) fn ticket(self: &Arc<Self>, blocks: Blocks, beyond: Blocks) -> Option<Ticket> {
        let mut state = self.state();
        if !self.budget_of(&state).fits_with(blocks + beyond) {
            return None;
        }
        state.tickets_issued += 1;
        let alone = (state.tickets == Blocks::default()).then(|| (state.tickets_issued, self.dirty()));
        state.tickets = state.tickets + blocks;
        Some(Ticket { space: Arc::clone(self), blocks, alone })
    }
}
