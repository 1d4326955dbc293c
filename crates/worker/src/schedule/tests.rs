//! Limits hold whatever happens in whatever order, and turns are shared fairly.

use domain::{SessionId, TenantId};
use proptest::prelude::*;
use uuid::Uuid;

use super::plan::Plan;
use super::{Schedule, TenantLimits};

const SLOTS: u32 = 6;

fn tenant(n: u8) -> TenantId {
    TenantId::from_uuid(Uuid::from_u128(u128::from(n) + 1))
}

fn session(n: u8) -> SessionId {
    SessionId::from_uuid(Uuid::from_u128(u128::from(n) + 100))
}

fn limits(running: u32, session_running: u32) -> TenantLimits {
    TenantLimits { running, session_running }
}

#[derive(Debug, Clone)]
enum Step {
    Hint(u8),
    Reserve(u8),
    /// A claim to which the store answers with so many calls of each planned tenant's sessions at the most.
    Claim(u8),
    FailedClaim,
    Release(usize),
    /// A call gives its slot back and wants one again later.
    Rest(usize),
    ComeBack,
    /// One that wants a slot again ends without it.
    StayAway(usize),
    Grant(u8),
    Surplus,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0u8..4).prop_map(Step::Hint),
        (0u8..4).prop_map(Step::Reserve),
        (0u8..5).prop_map(Step::Claim),
        Just(Step::FailedClaim),
        any::<usize>().prop_map(Step::Release),
        any::<usize>().prop_map(Step::Rest),
        Just(Step::ComeBack),
        any::<usize>().prop_map(Step::StayAway),
        (0u8..2).prop_map(Step::Grant),
        Just(Step::Surplus),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    #[test]
    fn limits_hold_whatever_happens(steps in steps()) {
        // Two tenants with two sessions each; the model counts what runs.
        let mut schedule = Schedule::new(SLOTS);
        for n in 0..4 {
            schedule.open(session(n), tenant(n / 2), limits(3, 2), 2);
            schedule.serve(session(n), true);
        }
        let mut granted = [0u32; 2];
        let mut running: Vec<u8> = Vec::new();
        let mut away: Vec<(u64, u8)> = Vec::new();
        for step in steps {
            match step {
                Step::Hint(n) => schedule.hint(session(n)),
                Step::Reserve(n) => {
                    if schedule.reserve(tenant(n / 2), session(n)) {
                        running.push(n);
                    }
                }
                Step::Claim(most) => {
                    let plan = schedule.plan();
                    let claimed = answer(&plan, &running, most);
                    let ids: Vec<_> = claimed.iter().map(|n| (tenant(n / 2), session(*n))).collect();
                    schedule.settle(&plan, Some(&ids));
                    running.extend(claimed);
                }
                Step::FailedClaim => {
                    let plan = schedule.plan();
                    schedule.settle(&plan, None);
                }
                Step::Release(index) => {
                    if !running.is_empty() {
                        let n = running.remove(index % running.len());
                        schedule.release(tenant(n / 2), session(n), 10);
                    }
                }
                Step::Rest(index) => {
                    if !running.is_empty() {
                        let n = running.remove(index % running.len());
                        schedule.release(tenant(n / 2), session(n), 10);
                        away.push((schedule.want_back(tenant(n / 2), session(n)), n));
                    }
                }
                Step::ComeBack => {
                    for ticket in schedule.come_back() {
                        let at = away.iter().position(|(mine, _)| *mine == ticket);
                        running.push(away.remove(at.expect("it was away")).1);
                    }
                    // Whoever is still away has a reason.
                    for (_, n) in &away {
                        let of_tenant = running.iter().filter(|session| **session / 2 == n / 2).count() as u32;
                        let of_session = running.iter().filter(|session| *session == n).count();
                        prop_assert!(of_session >= 2 || of_tenant >= granted[usize::from(n / 2)] || running.len() as u32 >= SLOTS);
                    }
                }
                Step::StayAway(index) => {
                    if !away.is_empty() {
                        schedule.stay_away(away.remove(index % away.len()).0);
                    }
                }
                Step::Grant(n) => {
                    if schedule.wanting_slots().iter().any(|(id, _, _)| *id == tenant(n)) && granted[usize::from(n)] < 3 {
                        schedule.grant(tenant(n), 1);
                        granted[usize::from(n)] += 1;
                    }
                }
                Step::Surplus => {
                    for (id, count) in schedule.take_surplus() {
                        let n = usize::from(id == tenant(1));
                        prop_assert!(granted[n] >= count);
                        granted[n] -= count;
                    }
                }
            }
            prop_assert!(running.len() as u32 <= SLOTS);
            prop_assert_eq!(schedule.free, i64::from(SLOTS) - running.len() as i64);
            for n in 0..2u8 {
                let of_tenant = running.iter().filter(|session| **session / 2 == n).count() as u32;
                prop_assert!(of_tenant <= granted[usize::from(n)]);
            }
            for n in 0..4u8 {
                prop_assert!(running.iter().filter(|session| **session == n).count() <= 2);
            }
        }
    }

    #[test]
    fn turns_go_to_whoever_has_had_least(head_start in 0u64..5_000) {
        let mut schedule = Schedule::new(4);
        for n in [0, 2] {
            schedule.open(session(n), tenant(n / 2), limits(100, 100), 100);
            schedule.serve(session(n), true);
            schedule.grant(tenant(n / 2), 100);
        }
        // The first tenant has run for a while alone.
        let plan = schedule.plan();
        schedule.settle(&plan, Some(&[]));
        schedule.hint(session(0));
        schedule.hint(session(2));
        let mut had = [0u32; 2];
        for round in 0..50 {
            let plan = schedule.plan();
            let calls: Vec<_> = plan
                .turns
                .iter()
                .flat_map(|turn| std::iter::repeat_n(turn.tenant_id, turn.slots as usize))
                .map(|id| (id, if id == tenant(0) { session(0) } else { session(2) }))
                .collect();
            schedule.settle(&plan, Some(&calls));
            for (id, session_id) in calls {
                had[usize::from(id == tenant(1))] += 1;
                let ran_ms = if round == 0 && id == tenant(0) { head_start } else { 10 };
                schedule.release(id, session_id, ran_ms);
            }
            schedule.hint(session(0));
            schedule.hint(session(2));
        }
        // A tenant that ran long is behind by what it ran, and never by more.
        prop_assert!(had[1] + 2 >= had[0]);
        prop_assert!(u64::from(had[1] - had[0].min(had[1])) <= 4 * head_start / 110 + 4);
    }
}

/// What a store would answer: calls of the planned tenants in sessions with room, at most `most` for each tenant.
fn answer(plan: &Plan, running: &[u8], most: u8) -> Vec<u8> {
    let mut seats: Vec<(u8, u32)> = (0..4)
        .map(|n| (n, plan.running.iter().find(|(id, _)| *id == session(n)).map_or(0, |(_, count)| *count)))
        .collect();
    let none_planned = plan.turns.is_empty();
    assert!(
        seats
            .iter()
            .all(|(n, count)| none_planned || *count >= running.iter().filter(|r| *r == n).count() as u32)
    );
    let mut claimed = Vec::new();
    for turn in &plan.turns {
        let mut left = turn.slots.min(u32::from(most));
        for (n, count) in seats.iter_mut().filter(|(n, _)| tenant(*n / 2) == turn.tenant_id) {
            while left > 0 && *count < turn.session_running_limit {
                claimed.push(*n);
                *count += 1;
                left -= 1;
            }
        }
    }
    claimed
}

#[test]
fn a_direct_start_never_overtakes_a_queued_call() {
    let mut schedule = Schedule::new(SLOTS);
    schedule.open(session(0), tenant(0), limits(8, 4), 4);
    schedule.serve(session(0), true);
    schedule.grant(tenant(0), 8);
    assert!(!schedule.reserve(tenant(0), session(0)), "calls may have queued while it started");
    let plan = schedule.plan();
    schedule.settle(&plan, Some(&[]));
    assert!(schedule.reserve(tenant(0), session(0)));
    schedule.hint(session(0));
    assert!(!schedule.reserve(tenant(0), session(0)));
}

#[test]
fn a_hint_during_a_claim_is_not_lost() {
    let mut schedule = Schedule::new(SLOTS);
    schedule.open(session(0), tenant(0), limits(8, 4), 4);
    schedule.serve(session(0), true);
    schedule.grant(tenant(0), 8);
    let plan = schedule.plan();
    schedule.hint(session(0));
    schedule.settle(&plan, Some(&[]));
    assert!(schedule.plan().slots() > 0);
}

#[test]
fn a_session_that_does_not_serve_starts_nothing() {
    let mut schedule = Schedule::new(SLOTS);
    schedule.open(session(0), tenant(0), limits(8, 4), 4);
    schedule.grant(tenant(0), 8);
    schedule.hint(session(0));
    assert_eq!(schedule.plan(), Plan::default());
    schedule.serve(session(0), true);
    assert!(schedule.plan().slots() > 0);
}

#[test]
fn slots_that_are_not_needed_are_given_back() {
    let mut schedule = Schedule::new(SLOTS);
    schedule.open(session(0), tenant(0), limits(32, 4), 4);
    assert_eq!(schedule.wanting_slots(), [(tenant(0), 32, 8)]);
    schedule.grant(tenant(0), 32);
    assert_eq!(schedule.take_surplus(), [(tenant(0), 28)]);
    schedule.close(session(0));
    assert_eq!(schedule.take_surplus(), [(tenant(0), 4)]);
    assert!(schedule.tenants().is_empty());
}
