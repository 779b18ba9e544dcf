use std::collections::BTreeMap;

use proptest::prelude::*;

use super::fake::{Bench, Shape, generation_of, leaving};
use crate::{PageNo, Placement, SwapError};

#[derive(Debug, Clone)]
enum Step {
    Out { pages: Vec<u32> },
    In { page: u32 },
    InWith { page: u32, neighbours: u32 },
    Free { first: u32, count: u32 },
    Background,
    Access { group: u32, index: u32 },
    WriteFiles { group: u32, count: u32 },
    DeleteFiles { group: u32 },
    Press { group: u32 },
    Pass { seconds: u64 },
}

const GROUPS: u32 = 6;

/// The number of slots in a group.
const GROUP_SLOTS: u32 = 24;

fn step() -> impl Strategy<Value = Step> {
    let page = 0..200u32;
    prop_oneof![
        4 => (page.clone(), 1..20u32, any::<bool>()).prop_map(|(first, count, backwards)| {
            let pages: Vec<u32> = (first..first + count).collect();
            Step::Out { pages: if backwards { pages.into_iter().rev().collect() } else { pages } }
        }),
        2 => prop::collection::vec(page.clone(), 1..6).prop_map(|pages| Step::Out { pages }),
        2 => page.clone().prop_map(|page| Step::In { page }),
        2 => (page.clone(), 0..9u32).prop_map(|(page, neighbours)| Step::InWith { page, neighbours }),
        2 => (page, 1..40u32).prop_map(|(first, count)| Step::Free { first, count }),
        3 => Just(Step::Background),
        4 => (0..GROUPS, 0..GROUP_SLOTS).prop_map(|(group, index)| Step::Access { group, index }),
        2 => (0..GROUPS, 1..100u32).prop_map(|(group, count)| Step::WriteFiles { group, count }),
        1 => (0..GROUPS).prop_map(|group| Step::DeleteFiles { group }),
        1 => (0..GROUPS).prop_map(|group| Step::Press { group }),
        1 => (1..50u64).prop_map(|seconds| Step::Pass { seconds }),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    (0..3u32, 4..110u32, 1..9u32, any::<bool>(), 0..8u32).prop_map(
        |(blocks, pages, area_pages, partition, placement)| {
            let granule = 1 << blocks;
            Shape {
                groups: GROUPS,
                group_blocks: GROUP_SLOTS * granule,
                block_bytes: 4096 / granule,
                pages,
                area_pages,
                partition,
                placement: if placement == 0 { Placement::Traditional } else { Placement::Areas },
            }
        },
    )
}

/// A swap and its model: the generation of every page that is out.
struct Pair {
    bench: Bench,
    shape: Shape,
    model: BTreeMap<u32, u32>,
    generation: u32,
}

impl Pair {
    fn take(&mut self, step: Step) {
        let pages = self.shape.pages;
        match step {
            Step::Out { pages: list } => self.out(list.into_iter().map(|page| page % pages).collect()),
            Step::In { page } => {
                let page = page % pages;
                assert_eq!(self.bench.generation(page), self.model.get(&page).copied());
            }
            Step::InWith { page, neighbours } => self.read_with(page % pages, neighbours),
            Step::Free { first, count } => {
                self.bench.swap.free(PageNo(first % pages), count);
                self.model.retain(|page, _| !(first % pages..first % pages + count).contains(page));
            }
            Step::Background => {
                self.bench.swap.run_background_step().expect("the disk is well");
            }
            Step::Access { group, index } => self.bench.access(group, index),
            Step::WriteFiles { group, count } => {
                self.bench.room.write_files(group, count);
            }
            Step::DeleteFiles { group } => self.bench.room.delete_files(group),
            Step::Press { group } => self.bench.room.press(group),
            Step::Pass { seconds } => self.bench.pass(seconds),
        }
    }

    fn out(&mut self, list: Vec<u32>) {
        self.generation += 1;
        match self.bench.swap.page_out(&leaving(list.iter().copied(), self.generation)) {
            Ok(()) => self.model.extend(list.into_iter().map(|page| (page, self.generation))),
            Err(SwapError::NoRoom { .. }) => {
                assert!(self.shape.block_bytes < 4096, "there are as many free blocks as reserved");
                self.resynchronise(list);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Updates the model after a failed page-out: some pages of the list are out, the others kept
    /// their contents.
    fn resynchronise(&mut self, list: Vec<u32>) {
        for page in list {
            let now = self.bench.generation(page);
            assert!(now == Some(self.generation) || now == self.model.get(&page).copied());
            now.map(|now| self.model.insert(page, now));
        }
    }

    fn read_with(&self, page: u32, neighbours: u32) {
        let mut came = Vec::new();
        let mut each = |page: PageNo, bytes: &[u8]| came.push((page.0, generation_of(page.0, bytes)));
        self.bench.swap.page_in_with(PageNo(page), neighbours, &mut each).expect("the disk is well");
        assert_eq!(came[0].0, page);
        assert!(came.len() <= neighbours as usize + 1);
        let generations = came.iter().map(|(page, _)| self.model.get(page).copied());
        assert!(generations.eq(came.iter().map(|(_, generation)| *generation)), "{came:?}");
        assert!(came.iter().all(|(_, generation)| *generation == came[0].1), "they left together: {came:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn pages_are_where_they_should_be(shape in shape(), steps in prop::collection::vec(step(), 1..120)) {
        let mut pair = Pair { bench: shape.bench(), shape, model: BTreeMap::new(), generation: 0 };
        for step in steps {
            pair.take(step);
            pair.bench.audit();
            prop_assert_eq!(pair.bench.swap.status().used as usize, pair.model.len());
        }
        for page in 0..pair.shape.pages {
            prop_assert_eq!(pair.bench.generation(page), pair.model.get(&page).copied());
        }
        let room = pair.bench.room.clone();
        drop(pair);
        prop_assert_eq!((room.taken(), room.reserved()), (0, 0));
    }
}
