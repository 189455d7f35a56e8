"""One QR ticket's life, without HTTP."""

import pytest

from supervisor.demo.login import Action, Confirm, Scripted, Status, Ticket, Tickets


def one_ticket(*, life_s: float = 120) -> tuple[Tickets, Ticket]:
    tickets = Tickets(life_s, verify_tries=3)
    ticket = Ticket("t", "https://example.invalid/q", 1000.0, ())
    tickets.by_id["t"] = ticket
    return tickets, ticket


def act(tickets: Tickets, ticket: Ticket, action: Action, *, code: str = "", host: str = "") -> None:
    tickets.act(ticket, action, "alice", verify_code=code, redirect_host=host)


def test_given_nothing_happens_then_the_poll_is_held() -> None:
    tickets, _ = one_ticket()

    assert tickets.poll("t", "", "h", 1001) is None


def test_given_a_scan_and_a_confirmation_then_credentials_come_exactly_once() -> None:
    tickets, ticket = one_ticket()
    act(tickets, ticket, Action.SCAN)
    assert tickets.poll("t", "", "h", 1001) == {"status": "scaned"}
    assert tickets.poll("t", "", "h", 1002) is None
    act(tickets, ticket, Action.CONFIRM)

    told = [tickets.poll("t", "", "h", 1003), tickets.poll("t", "", "h", 1004)]

    assert told == [Confirm("alice"), {"status": "expired"}]


def test_a_ticket_expires_after_its_life_and_an_unknown_one_at_once() -> None:
    tickets, _ = one_ticket()

    assert tickets.poll("t", "", "h", 1119.9) is None
    assert tickets.poll("t", "", "h", 1120) == {"status": "expired"}
    assert tickets.poll("other", "", "h", 1001) == {"status": "expired"}


def test_the_right_code_leads_to_scaned_and_confirmed() -> None:
    tickets, ticket = one_ticket()
    act(tickets, ticket, Action.VERIFY, code="42")

    told = [tickets.poll("t", code, "h", 1001) for code in ("", "41", "42", "")]

    assert told == [
        {"status": "need_verifycode"},
        {"status": "need_verifycode"},
        {"status": "scaned"},
        Confirm("alice"),
    ]


def test_three_wrong_codes_block_the_ticket() -> None:
    tickets, ticket = one_ticket()
    act(tickets, ticket, Action.VERIFY, code="42")

    told = [tickets.poll("t", "0", "h", 1001) for _ in range(3)]

    assert told[-1] == {"status": "verify_code_blocked"}
    assert ticket not in tickets.pending(1001)


def test_a_redirected_poll_is_confirmed_only_at_the_other_host() -> None:
    tickets, ticket = one_ticket()
    act(tickets, ticket, Action.REDIRECT, host="idc2")

    here, there = tickets.poll("t", "", "idc1", 1001), tickets.poll("t", "", "idc2", 1002)

    assert here == {"status": "scaned_but_redirect", "redirect_host": "idc2"}
    assert there == Confirm("alice")


@pytest.mark.parametrize(
    ("action", "status"), [(Action.ALREADY_BOUND, Status.BINDED_REDIRECT), (Action.EXPIRE, Status.EXPIRED)]
)
def test_a_ticket_that_ends_says_so_without_credentials(action: Action, status: Status) -> None:
    tickets, ticket = one_ticket()
    act(tickets, ticket, action)

    assert tickets.poll("t", "", "h", 1001) == {"status": status.value}


def test_a_script_answers_in_place_of_phones() -> None:
    tickets, _ = one_ticket()
    tickets.script_person = "bob"
    tickets.script.extend(["wait", "http:524", "scaned_but_redirect:idc2", "confirmed"])

    told = [tickets.poll("t", "", "h", 1001) for _ in range(4)]

    assert told == [
        {"status": "wait"},
        Scripted(524),
        {"status": "scaned_but_redirect", "redirect_host": "idc2"},
        Confirm("bob"),
    ]
