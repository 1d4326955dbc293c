//! The figures that have a goal, as a picture: how many times away each is, on one scale for all.

use super::{Goal, Report, Row, reached};
use crate::svg::{Anchor, Picture};

const WIDTH: f64 = 1_180.0;
const TOP: f64 = 92.0;
const ROW: f64 = 26.0;
/// Where the scale begins and ends.
const SCALE: (f64, f64) = (560.0, 880.0);
/// What is drawn at the ends of the scale at least, and at most, in goals.
const NARROWEST: (f64, f64) = (0.25, 4.0);
const WIDEST: (f64, f64) = (1.0 / 64.0, 64.0);

/// Rows as dots on a logarithmic scale of goals, with a line where the goal is. Left of it is better, whatever the goal says.
pub(super) fn draw(report: &Report) -> String {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.goal.is_some()).collect();
    let places: Vec<f64> = rows.iter().filter_map(|row| in_goals(row, row.figure)).collect();
    let scale = Scale::over(&places);
    let bottom = TOP + ROW * rows.len() as f64;
    let mut picture = Picture::default();
    picture.text(24.0, 34.0, Anchor::Start, "title", "Toolhost against its goals");
    picture.text(24.0, 56.0, Anchor::Start, "faint", &report.facts());
    for (at, name) in scale.ticks() {
        let goal = at == 1.0;
        let x = scale.x(at);
        picture.line(
            (x, TOP - 10.0),
            (x, bottom),
            if goal { "text" } else { "line" },
            if goal { 1.5 } else { 1.0 },
        );
        picture.text(x, TOP - 16.0, Anchor::Middle, if goal { "" } else { "faint" }, &name);
    }
    for (row, middle) in rows.iter().zip(0_u32..).map(|(row, n)| (row, TOP + ROW * (f64::from(n) + 0.5))) {
        draw_row(&mut picture, &scale, row, middle);
    }
    let foot = "Dot: the figure, as a multiple of its goal (left of the line is better). Bar: its smallest and largest round.";
    picture.text(24.0, bottom + 32.0, Anchor::Start, "faint", foot);
    picture.finish(WIDTH, bottom + 52.0, "Each figure of the bench as a multiple of its goal")
}

fn draw_row(picture: &mut Picture, scale: &Scale, row: &Row, middle: f64) {
    let [measure, what, goal, figure, ..] = row.cells();
    let words = middle + 4.5;
    picture.text(24.0, words, Anchor::Start, "faint", &measure);
    picture.text(60.0, words, Anchor::Start, "", &shortened(&what));
    picture.text(SCALE.1 + 90.0, words, Anchor::End, "faint number", &goal);
    picture.text(SCALE.1 + 106.0, words, Anchor::Start, "number", &figure);
    let Some(at) = in_goals(row, row.figure) else {
        picture.text(scale.x(1.0) + 10.0, words, Anchor::Start, "faint", "not measured");
        return;
    };
    let colour = if row.goal.is_some_and(|goal| reached(goal, row.figure)) { "good" } else { "away" };
    if let Some([least, most]) = row.spread
        && let (Some(from), Some(to)) = (in_goals(row, least), in_goals(row, most))
    {
        picture.line((scale.x(from), middle), (scale.x(to), middle), colour, 2.5);
    }
    picture.dot((scale.x(at), middle), 5.5, colour);
}

/// How far a figure is, as a multiple of its goal; what has to be large, the other way round.
fn in_goals(row: &Row, figure: f64) -> Option<f64> {
    if figure.is_nan() {
        return None;
    }
    match row.goal? {
        // A goal of none at all is reached or far away.
        Goal::AtMost(0.0) => Some(if figure == 0.0 { WIDEST.0 } else { WIDEST.1 }),
        Goal::AtMost(limit) => Some(figure / limit),
        Goal::AtLeast(limit) => Some(limit / figure),
    }
}

/// Long names lose their end; the table has all of it.
fn shortened(what: &str) -> String {
    const LONGEST: usize = 68;
    if what.chars().count() <= LONGEST {
        return what.to_owned();
    }
    let kept: String = what.chars().take(LONGEST - 1).collect();
    format!("{}…", kept.trim_end())
}

/// A logarithmic scale of goals.
#[derive(Debug)]
struct Scale {
    from: f64,
    to: f64,
}

impl Scale {
    /// Wide enough for these, within reason, by whole powers of two.
    fn over(places: &[f64]) -> Self {
        let within = |place: f64| place.clamp(WIDEST.0, WIDEST.1);
        let least = places.iter().copied().map(within).fold(NARROWEST.0, f64::min);
        let most = places.iter().copied().map(within).fold(NARROWEST.1, f64::max);
        Self { from: least.log2().floor().exp2(), to: most.log2().ceil().exp2() }
    }

    fn x(&self, at: f64) -> f64 {
        let share = (at.clamp(self.from, self.to) / self.from).ln() / (self.to / self.from).ln();
        SCALE.0 + share * (SCALE.1 - SCALE.0)
    }

    /// The goal, and every other power of two beside it.
    fn ticks(&self) -> Vec<(f64, String)> {
        let (first, last) = (self.from.log2() as i32, self.to.log2() as i32);
        let ticks = (first..=last).filter(|power| power % 2 == 0).map(|power| {
            let name = match power {
                0 => "goal".to_owned(),
                1.. => format!("{} ×", 1_u64 << power),
                _ => format!("1/{} ×", 1_u64 << -power),
            };
            (f64::from(power).exp2(), name)
        });
        ticks.collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::figures::Ratio;

    #[test]
    fn left_of_the_line_is_better() {
        let ratio = |median| Ratio { median, least: median, most: median };
        let at_most = Row::ratio("P1", "x", Goal::AtMost(2.0), ratio(1.0));
        let at_least = Row::ratio("P1", "x", Goal::AtLeast(2.0), ratio(4.0));
        assert_eq!(in_goals(&at_most, 1.0), Some(0.5));
        assert_eq!(in_goals(&at_least, 4.0), Some(0.5));
        let scale = Scale::over(&[0.5, 10.0]);
        assert!(scale.x(0.5) < scale.x(1.0) && scale.x(1.0) < scale.x(10.0));
        assert!(scale.ticks().iter().any(|(at, name)| *at == 1.0 && name == "goal"));
    }

    #[test]
    fn what_was_not_measured_has_no_dot() {
        let mut report = Report::new(json!({"machine": {}, "versions": {}}));
        report.add(vec![Row::missing("P7", "a < b", Goal::AtLeast(2.0))]);
        let picture = draw(&report);
        assert!(!picture.contains("<circle") && picture.contains("a &lt; b"), "{picture}");
    }
}
