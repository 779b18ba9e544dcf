//! C-LOOK order and merging of pending requests.

use std::collections::BTreeMap;

use crate::{Buf, Done, Epoch, Lba, Op, Page, Request, SECTOR, Tag};

/// Limits of one request to the device, and of the number of requests in one dispatch.
pub(super) struct Caps {
    pub(super) transfer_bytes_max: usize,
    pub(super) segments_max: usize,
    pub(super) requests_max: usize,
    pub(super) merge: bool,
}

/// The request and batch that a part belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) batch: u64,
    /// Index in the batch.
    pub(super) request: usize,
    /// Index in the request.
    pub(super) part: usize,
}

/// A request that fits the device's limits.
pub(super) struct Part {
    pub(super) origin: Origin,
    pub(super) request: Request,
}

/// Parts that wait for the device, by address and then in order of submission.
#[derive(Default)]
pub(super) struct Pending {
    parts: BTreeMap<(Lba, u64), Part>,
    arrivals: u64,
    /// The end of the last dispatch, near which a disk's head is.
    head: Lba,
}

impl Pending {
    pub(super) fn insert(&mut self, part: Part) {
        self.parts.insert((part.request.at, self.arrivals), part);
        self.arrivals += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Takes the next requests for the device, ascending from the head, then from the lowest.
    pub(super) fn take(&mut self, caps: &Caps) -> Option<(Vec<Request>, Vec<Group>)> {
        let mut building: Vec<Building> = Vec::new();
        let mut cursor = (self.head, 0);
        while let Some(key) = self.next_key(cursor) {
            let part = &self.parts[&key];
            let merges = building.last().is_some_and(|last| last.takes(&part.request, caps));
            if !merges && building.len() == caps.requests_max {
                break;
            }
            let part = self.parts.remove(&key).expect("found just now");
            cursor = key;
            self.head = end(&part.request);
            match building.last_mut() {
                Some(last) if merges => last.push(part),
                _ => building.push(Building::new(part)),
            }
        }
        (!building.is_empty()).then(|| building.into_iter().map(Building::finish).unzip())
    }

    fn next_key(&self, cursor: (Lba, u64)) -> Option<(Lba, u64)> {
        let ahead = self.parts.range(cursor..).next();
        ahead.or_else(|| self.parts.first_key_value()).map(|(&key, _)| key)
    }
}

/// Returns the sector behind a request.
fn end(request: &Request) -> Lba {
    Lba(request.at.0 + request.bytes() / SECTOR as u64)
}

/// A request to the device while parts are being merged into it.
struct Building {
    parts: Vec<Part>,
    end: Lba,
    bytes: u64,
    segments: usize,
}

impl Building {
    fn new(part: Part) -> Building {
        let request = &part.request;
        Building { end: end(request), bytes: request.bytes(), segments: segments(&request.op), parts: vec![part] }
    }

    /// Returns true if `next` follows without a gap, is of the same kind, and there is room for it.
    fn takes(&self, next: &Request, caps: &Caps) -> bool {
        let same_kind = match (&self.parts[0].request.op, &next.op) {
            (Op::Read { .. }, Op::Read { .. }) => true,
            (Op::Write { fua: one, .. }, Op::Write { fua: two, .. }) => one == two,
            _ => false,
        };
        caps.merge
            && same_kind
            && self.end == next.at
            && self.bytes + next.bytes() <= caps.transfer_bytes_max as u64
            && self.segments + segments(&next.op) <= caps.segments_max
    }

    fn push(&mut self, part: Part) {
        self.end = end(&part.request);
        self.bytes += part.request.bytes();
        self.segments += segments(&part.request.op);
        self.parts.push(part);
    }

    /// Returns the request to the device, and the data needed to distribute its result to the parts. The request is
    /// tagged as contents only if all parts are: a disk that forgets contents must keep the rest.
    fn finish(mut self) -> (Request, Group) {
        if self.parts.len() == 1 {
            let Part { origin, request } = self.parts.remove(0);
            return (request, Group::Single(origin));
        }
        let members: Vec<Member> = self.parts.iter().map(Member::of).collect();
        let mut parts = self.parts.into_iter().map(|p| p.request);
        let mut whole = parts.next().expect("a group has parts");
        for part in parts {
            if whole.tag.kind.is_contents() {
                whole.tag = part.tag;
            }
            match (&mut whole.op, part.op) {
                (Op::Read { into }, Op::Read { into: more }) => into.extend(more),
                (Op::Write { data, .. }, Op::Write { data: more, .. }) => data.extend(more),
                _ => unreachable!("only requests of one kind merge"),
            }
        }
        (whole, Group::Merged(members))
    }
}

/// The parts that one request to the device serves.
pub(super) enum Group {
    Single(Origin),
    Merged(Vec<Member>),
}

/// One part of a merged request: the data needed to cut its share out of the result, or to repeat
/// it without the others.
pub(super) struct Member {
    origin: Origin,
    at: Lba,
    tag: Tag,
    share: Share,
}

enum Share {
    /// The lengths of the part's buffers in bytes.
    Read(Vec<usize>),
    Write(Vec<Page>, bool),
}

impl Member {
    fn of(part: &Part) -> Member {
        let share = match &part.request.op {
            Op::Read { into } => Share::Read(into.iter().map(|b| b.len()).collect()),
            Op::Write { data, fua } => Share::Write(data.clone(), *fua),
            Op::Discard { .. } | Op::WriteZeroes { .. } => unreachable!("commands without data do not merge"),
        };
        Member { origin: part.origin, at: part.request.at, tag: part.request.tag, share }
    }

    fn buffers(&self) -> usize {
        match &self.share {
            Share::Read(lengths) => lengths.len(),
            Share::Write(..) => 0,
        }
    }

    fn into_request(self) -> Request {
        let op = match self.share {
            Share::Read(lengths) => Op::Read { into: lengths.into_iter().map(Buf::scratch).collect() },
            Share::Write(data, fua) => Op::Write { data, fua },
        };
        Request { op, at: self.at, tag: self.tag }
    }
}

impl Group {
    pub(super) fn is_merged(&self) -> bool {
        matches!(self, Group::Merged(_))
    }

    /// Returns true if a part of `batch` is in the group.
    pub(super) fn serves(&self, batch: u64) -> bool {
        match self {
            Group::Single(origin) => origin.batch == batch,
            Group::Merged(members) => members.iter().any(|m| m.origin.batch == batch),
        }
    }

    /// Returns the parts again, each as a request of its own.
    pub(super) fn unmerged(self) -> (Vec<Origin>, Vec<Request>) {
        match self {
            Group::Single(_) => (Vec::new(), Vec::new()),
            Group::Merged(members) => members.into_iter().map(|m| (m.origin, m.into_request())).unzip(),
        }
    }

    /// Gives every part its share of the result.
    pub(super) fn distribute(self, result: Result<Vec<Buf>, crate::DiskError>, epoch: Epoch) -> Vec<(Origin, Done)> {
        let members = match self {
            Group::Single(origin) => return vec![(origin, Done { result, epoch })],
            Group::Merged(members) => members,
        };
        let mut bufs = result.map(Vec::into_iter);
        let share = |member: Member| {
            let result = match &mut bufs {
                Ok(bufs) => Ok(bufs.by_ref().take(member.buffers()).collect()),
                Err(error) => Err(error.clone()),
            };
            (member.origin, Done { result, epoch })
        };
        members.into_iter().map(share).collect()
    }
}

/// Returns the number of memory pieces of a request; commands without data have none.
fn segments(op: &Op) -> usize {
    match op {
        Op::Read { into } => into.len(),
        Op::Write { data, .. } => data.len(),
        Op::Discard { .. } | Op::WriteZeroes { .. } => 0,
    }
}
