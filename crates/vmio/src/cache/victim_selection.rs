//! Victim selection: which mapping evictors take pages from next, and how many of its pages may go.

use std::sync::Arc;

use crate::cache::evictor::Evictor;
use crate::cache::huge_frame::{HugeFrame, is_full};
use crate::cache::pass::{Goal, PASS_PAGES, Pass};
use crate::cache::shared::Shared;
use crate::cache::tenant::Tenant;
use crate::cache::victim_source::Source;

/// Spreads selections evenly: the golden ratio of 2^32.
const SELECTION_STEP: u64 = 0x9e37_79b9;

impl Evictor {
    /// Makes passes over one selected mapping after the other, until it has found half of `wanted`. To get the rest
    /// from mappings that have little to give would cost a shootdown each.
    pub(super) fn pass_of_all(
        &mut self,
        shared: &Shared,
        tenants: &[Arc<Tenant>],
        wanted: usize,
        goal: Goal,
        frame: &mut Option<&mut HugeFrame>,
    ) -> Pass {
        let commons_pages = if tenants.is_empty() { u32::MAX } else { shared.commons_pages(tenants) };
        let unbounded = Source::unbounded(shared, commons_pages);
        if tenants.is_empty() {
            return self.pass_from(shared, &unbounded, wanted, goal, frame);
        }
        let mut pass = Pass::default();
        let achieved = |pass: Pass| if goal == Goal::Clean { pass.written } else { pass.freed } as usize;
        let first = shared.select_mapping(tenants);
        for number in (first..=tenants.len()).chain(0..first) {
            if achieved(pass) > wanted / 2 || is_full(frame) {
                break;
            }
            let left = wanted - achieved(pass);
            pass += match tenants.get(number) {
                Some(tenant) => self.pass_of_tenant(shared, (tenant, false), left, goal, frame),
                None => self.pass_from(shared, &unbounded, left, goal, frame),
            };
        }
        if goal == Goal::EvictBelowFloors && pass.freed == 0 {
            for tenant in tenants {
                if pass.freed == 0 {
                    pass += self.pass_of_tenant(shared, (tenant, true), wanted, goal, frame);
                }
            }
        }
        pass
    }

    /// A pass over a tenant, for others: down to its floor, or below it if `below_floor`.
    fn pass_of_tenant(
        &mut self,
        shared: &Shared,
        (tenant, below_floor): (&Tenant, bool),
        wanted: usize,
        goal: Goal,
        frame: &mut Option<&mut HugeFrame>,
    ) -> Pass {
        if goal == Goal::Clean {
            return self.pass_from(shared, &Source::tenant(shared, tenant, usize::MAX), wanted, goal, frame);
        }
        let claimed = tenant.claim(wanted.min(PASS_PAGES) as u32, below_floor);
        if claimed == 0 {
            return Pass::default();
        }
        let source = Source::tenant(shared, tenant, claimed as usize);
        let pass = self.pass_from(shared, &source, wanted, goal, frame);
        tenant.end_claim(claimed);
        pass
    }
}

impl Shared {
    /// Pages that the mappings without floor and ceiling hold, or could have: all that is neither free nor a tenant's.
    fn commons_pages(&self, tenants: &[Arc<Tenant>]) -> u32 {
        let of_tenants = tenants.iter().map(|tenant| u64::from(tenant.pages())).sum::<u64>();
        u64::from(self.memory.capacity_pages().saturating_sub(self.memory.budget.free())).saturating_sub(of_tenants)
            as u32
    }

    /// Selects the mapping that gives pages up next: among mappings whose next span has the highest priority, each as
    /// often as it has pages to give. Returns the number of a tenant; the number behind the last one means all other
    /// mappings.
    fn select_mapping(&self, tenants: &[Arc<Tenant>]) -> usize {
        let unbounded = tenants.len();
        let candidate = |number: usize| match tenants.get(number) {
            Some(tenant) => {
                let spare = tenant.spare_pages();
                (if spare > 0 { tenant.order.policy.top() } else { None }, u64::from(spare))
            }
            None => (self.eviction.order.policy.top(), u64::from(self.commons_pages(tenants).max(1))),
        };
        let top = (0..=unbounded).filter_map(|number| candidate(number).0).max();
        let weight = |number: usize| Some(candidate(number)).filter(|(of, _)| *of == top).map_or(0, |(_, pages)| pages);
        let total: u64 = (0..=unbounded).map(weight).sum();
        let selection = self.eviction.next_selection().wrapping_mul(SELECTION_STEP) & u64::from(u32::MAX);
        let mut at = ((u128::from(selection) * u128::from(total)) >> 32) as u64;
        for number in 0..unbounded {
            let pages = weight(number);
            if at < pages {
                return number;
            }
            at -= pages;
        }
        unbounded
    }
}
