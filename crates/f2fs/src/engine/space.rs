//! Space: the blocks that are valid, those that may be written, and the six logs that hand them
//! out.
//!
//! Three facts about a block of the main area are kept:
//! * *valid*: something in memory points to it (what SIT will say);
//! * *held*: it must not be overwritten. The last durable checkpoint has it as valid, or it was handed out
//!   since: a node chain may lead to it, and a crash would follow that chain;
//! * *in flight*: handed out for data that are being written, not placed yet.
//!
//! Invariants: a block is handed out only if it is neither valid nor held. A segment is free if no block of it is valid
//! or held and no log stands in it. What a checkpoint releases becomes usable when that checkpoint is durable
//! ([`MainArea::committed`]), not before.
//! Nothing here waits or does I/O: the mutex is a leaf.
//!
//! Every log stands on a block that may be written, in a segment of its own: a log hands out its
//! last block only when it has found another place ([`State::take`](state::State::take)). And what waits for the next
//! checkpoint has a place at every moment ([`crate::place::budget`]): dirty metadata are counted
//! here, ops reserve what they may add ([`Ticket`]), and contents of files leave as much as that
//! needs.
//!
//! Free sections can also be taken by swap areas ([`swaparea`]).
//!
//! | module | what it has |
//! |---|---|
//! | [`state`] | the segments with their blocks, and what is counted of them |
//! | [`head`], [`recorded`], [`areas`] | parts of that state: places of logs, summaries, swap areas |
//! | [`area`] | the main area: that state under a lock |
//! | [`logs`] | handing out blocks |
//! | [`owed`] | keeping room for metadata |
//! | [`picture`] | what a checkpoint records, and what it releases |
//! | [`swaparea`] | swap space |

mod area;
mod areas;
mod head;
mod logs;
mod owed;
mod picture;
mod recorded;
mod state;
pub(super) mod swaparea;

pub(super) use self::area::{MainArea, keeper};
pub use self::head::LogCounters;
pub(super) use self::owed::Ticket;
pub(super) use self::picture::Picture;
pub(super) use self::recorded::Recorded;
pub(super) use self::state::Origin;
