//! The ratios as a picture.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::claim::Finding;

const ROW: i32 = 22;
const LABELS: i32 = 560;
const BARS: i32 = 420;
const MET: RGBColor = RGBColor(46, 125, 50);
const MISSED: RGBColor = RGBColor(198, 116, 40);
const INK: RGBColor = RGBColor(90, 90, 90);
/// What the axis spans, on a logarithmic scale.
const RATIOS: (f64, f64) = (0.125, 32.0);

/// An SVG: a bar for each finding that has a ratio, from 1 to it, and a mark where it is wanted.
pub fn draw(findings: &[Finding]) -> Result<String> {
    let rows: Vec<_> = findings.iter().filter_map(|finding| finding.ratio.map(|ratio| (finding, ratio))).collect();
    let height = ROW * (rows.len() as i32 + 2);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, ((LABELS + BARS + 60) as u32, height as u32)).into_drawing_area();
        let drawn = |error| anyhow!("drawing the ratios: {error}");
        area.fill(&WHITE).map_err(drawn)?;
        let text = |align| ("sans-serif", 13).into_font().color(&INK).pos(Pos::new(align, VPos::Center));
        for tick in [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0] {
            let style = if tick == 1.0 { INK.stroke_width(2) } else { INK.mix(0.2).stroke_width(1) };
            area.draw(&PathElement::new(vec![(at(tick), ROW), (at(tick), height)], style)).map_err(drawn)?;
            area.draw(&Text::new(tick.to_string(), (at(tick), ROW / 2), text(HPos::Center))).map_err(drawn)?;
        }
        for (row, (finding, ratio)) in (1..).zip(rows) {
            let (top, middle) = (row * ROW + 4, row * ROW + ROW / 2);
            let claim = finding.claim;
            let label = format!("{}: {}", claim.system, claim.what.replace('`', ""));
            area.draw(&Text::new(label, (LABELS - 8, middle), text(HPos::Right))).map_err(drawn)?;
            let color = if finding.is_met() { MET } else { MISSED };
            let (from, to) = (at(1.0).min(at(ratio)), at(1.0).max(at(ratio)));
            area.draw(&Rectangle::new([(from, top), (to, top + ROW - 8)], color.filled())).map_err(drawn)?;
            let wanted = at(claim.wanted);
            area.draw(&PathElement::new(vec![(wanted, top - 2), (wanted, top + ROW - 6)], BLACK.stroke_width(2)))
                .map_err(drawn)?;
            area.draw(&Text::new(format!("{ratio:.2}"), (to.max(wanted) + 5, middle), text(HPos::Left)))
                .map_err(drawn)?;
        }
        area.present().map_err(drawn)?;
    }
    Ok(svg)
}

fn at(ratio: f64) -> i32 {
    let share = (ratio.clamp(RATIOS.0, RATIOS.1) / RATIOS.0).ln() / (RATIOS.1 / RATIOS.0).ln();
    LABELS + (share * f64::from(BARS)) as i32
}
