//! The census of an allocator whose granules are closed only once they are empty.

use super::{allocator::held, page::Page};
use crate::{
    Census,
    export::{Error, table::Rows},
    units,
};

/// Columns of the tables.
const WIDTH: u16 = 60;

impl Page<'_> {
    pub(super) fn census(&mut self, census: &Census) -> Result<(), Error> {
        let bytes = held(census.bytes_open);
        let live = held(census.live_bytes);
        self.fact(
            "census",
            &format!(
                "{} granules open{bytes}: {} empty, {} unknown, {} live objects{live} in the others",
                census.granules_open, census.drainable_now, census.unknown, census.live_objects
            ),
        )?;
        if let (Some(granules), Some(bytes)) =
            (census.compactable_granules, census.compactable_bytes)
        {
            let text = format!(
                "{granules} granules ({}) would come free if these objects lay side by side",
                units::bytes(bytes)
            );
            self.fact("compacted", &text)?;
        }
        if census.unknown_live_objects > 0 {
            let text = format!(
                "hold at least {} objects{}: those that were seen",
                census.unknown_live_objects,
                held(census.unknown_live_bytes)
            );
            self.fact("unknown", &text)?;
        }
        if let Some(apart) = census.apart.filter(|apart| apart.objects > 0) {
            let text = format!(
                "{} live objects ({}) are larger than a granule and in none of them",
                apart.objects,
                units::bytes(apart.bytes)
            );
            self.fact("apart", &text)?;
        }
        if let Some(frees) = census.unknown_frees.filter(|&frees| frees > 0) {
            self.fact("older", &format!("{frees} frees of objects whose allocation was not seen"))?;
        }
        match &census.fill {
            Some(fill) => {
                let mut rows = Rows::new(&["full", "granules", "live bytes"], 1, WIDTH);
                for class in fill {
                    rows.push(vec![
                        format!("{}–{} %", class.percent_from, class.percent_to),
                        class.granules.to_string(),
                        units::bytes(class.live_bytes),
                    ]);
                }
                self.table(rows)
            }
            None => self.occupancy(census),
        }
    }

    fn occupancy(&mut self, census: &Census) -> Result<(), Error> {
        let mut rows = Rows::new(&["live objects", "granules"], 1, WIDTH);
        for class in &census.occupancy {
            let range = if class.live_from == class.live_to {
                class.live_from.to_string()
            } else {
                format!("{}–{}", class.live_from, class.live_to)
            };
            rows.push(vec![range, class.granules.to_string()]);
        }
        self.table(rows)
    }

    fn table(&mut self, rows: Rows) -> Result<(), Error> {
        if rows.is_empty() { Ok(()) } else { self.rows(rows, "    ") }
    }
}
