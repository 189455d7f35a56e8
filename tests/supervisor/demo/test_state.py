"""The service's rules, without HTTP and with a time of our own."""

import base64
import random
from typing import Any

import pytest

from supervisor.demo import faults
from supervisor.demo.cdn import KeyForm, decrypt, encrypt, md5_hex, padded_size, read_key, write_key
from supervisor.demo.inbound import Attachment, QuoteOf, Said
from supervisor.demo.login import Action
from supervisor.demo.names import Mint
from supervisor.demo.state import Bot, Empty, Impossible, Settings, World

Json = dict[str, Any]
NOON = 1_790_000_000.0
DAY_S = 86_400.0


def new_world(**settings: Any) -> World:
    return World(Mint(random.Random(7)), Settings(**settings), base_url="http://sim", cdn_url="http://sim/c2c")


def new_bot(world: World, owner: str = "alice@im.wechat", now: float = NOON) -> Bot:
    world.add_person(person_id=owner, name="", now=now)
    ticket = world.create_ticket("3", [], now)["qrcode"]
    world.scan(ticket, owner, Action.CONFIRM, now, verify_code="", redirect="")
    told = world.ticket_status(ticket, "", "sim", now)
    assert isinstance(told, dict)
    return world.bots[told["ilink_bot_id"]]


def say(world: World, text: str = "hi", who: str = "alice@im.wechat", now: float = NOON, **more: Any) -> Json:
    return world.say(who, Said(text=text, **more), now)


def poll(world: World, bot: Bot, cursor: str = "", now: float = NOON) -> Json:
    """One poll whose hold is over at once."""
    held = world.begin_poll(bot, {"get_updates_buf": cursor}, now)
    answer = world.try_poll(held, now) or world.held_poll(held)
    world.end_poll(held, now)
    return answer


def texts(answer: Json) -> list[str]:
    return [message["item_list"][0]["text_item"]["text"] for message in answer["msgs"]]


def send(world: World, bot: Bot, token: str | None, text: str = "yes", now: float = NOON, **changes: Any) -> Json:
    item = {"type": 1, "text_item": {"text": text}}
    message: Json = {
        "to_user_id": bot.owner,
        "client_id": f"c{len(world.sends)}",
        "message_type": 2,
        "message_state": 2,
    }
    message |= {"item_list": [item], "context_token": token} | changes
    answer = world.send(bot, {"msg": message}, now)
    assert not isinstance(answer, Empty)
    return answer


def shown(world: World, who: str = "alice@im.wechat") -> list[str]:
    return [b["text"] for b in world.phone(who, NOON)["bubbles"] if b["side"] == "bot"]


# --- polls ------------------------------------------------------------------------------------------------------------


def test_a_message_is_handed_out_once_whatever_cursor_comes_later() -> None:
    world = new_world()
    bot = new_bot(world)
    start = poll(world, bot)["get_updates_buf"]
    say(world, "one")

    first, again = poll(world, bot, start), poll(world, bot, start)

    assert texts(first) == ["one"]
    assert again["msgs"] == []
    assert again["get_updates_buf"] == first["get_updates_buf"] != start


def test_an_answer_has_no_ret_and_announces_the_hold() -> None:
    world = new_world(hold_s=2)

    answer = poll(world, new_bot(world))

    assert answer == {
        "msgs": [],
        "sync_buf": "",
        "get_updates_buf": answer["get_updates_buf"],
        "longpolling_timeout_ms": 2000,
    }


@pytest.mark.parametrize("cursor", ["", "garbage", "Z2FyYmFnZQ==", None, 7])
def test_an_empty_or_unknown_cursor_is_taken(cursor: Any) -> None:
    world = new_world()
    bot = new_bot(world)
    say(world, "one")

    assert texts(poll(world, bot, cursor)) == ["one"]


def test_a_cursor_of_an_older_bot_leaves_the_channel_mute() -> None:
    world = new_world()
    old_cursor = poll(world, new_bot(world))["get_updates_buf"]
    bot = new_bot(world)
    say(world, "one")

    assert poll(world, bot, old_cursor)["msgs"] == []
    assert texts(poll(world, bot, "")) == ["one"]


def test_messages_wait_for_days_while_nobody_polls() -> None:
    world = new_world()
    bot = new_bot(world)
    say(world, "one")
    say(world, "two")

    assert texts(poll(world, bot, now=NOON + 30 * DAY_S)) == ["one", "two"]


def test_with_rewind_an_older_cursor_gets_the_rest_again() -> None:
    world = new_world()
    bot = new_bot(world)
    world.panel.set(faults.Rewind())
    say(world, "one")
    after_one = poll(world, bot)["get_updates_buf"]
    say(world, "two")
    after_two = poll(world, bot, after_one)["get_updates_buf"]

    assert texts(poll(world, bot, after_one)) == ["two"]
    assert texts(poll(world, bot, "")) == ["one", "two"]
    assert poll(world, bot, after_two)["msgs"] == []


def test_duplicates_come_in_the_batch_in_the_next_poll_or_under_another_id() -> None:
    for mode, batches in (("same_batch", [2, 0]), ("next_poll", [1, 1]), ("new_id", [1, 1])):
        world = new_world()
        bot = new_bot(world)
        world.panel.set(faults.Duplicate(mode=mode))  # type: ignore[arg-type]
        say(world, "one")

        got = [poll(world, bot)["msgs"] for _ in range(2)]

        assert [len(batch) for batch in got] == batches, mode
        first, second = [message for batch in got for message in batch]
        assert (first["message_id"] == second["message_id"]) is (mode != "new_id"), mode
        assert (first["create_time_ms"], first["item_list"]) == (second["create_time_ms"], second["item_list"]), mode


def test_a_replay_falls_due_later_and_the_poll_knows_when() -> None:
    world = new_world()
    bot = new_bot(world)
    world.panel.set(faults.Replay(after_ms=5000, times=1))
    say(world, "one")
    poll(world, bot)
    held = world.begin_poll(bot, {}, NOON)

    assert world.try_poll(held, NOON) is None
    assert world.next_due_at(held, NOON) == NOON + 5
    assert world.try_poll(held, NOON + 5) is not None


def test_a_stranger_reaches_the_owners_bot_and_a_guest_only_their_own() -> None:
    world = new_world()
    owner = new_bot(world)
    guest = new_bot(world, "bob@im.wechat")
    world.add_person(person_id="mallory@im.wechat", name="", now=NOON)

    assert say(world, who="mallory@im.wechat")["bot"] == owner.id
    assert say(world, who="bob@im.wechat")["bot"] == guest.id
    assert say(world, who="mallory@im.wechat", to="bob@im.wechat")["bot"] == guest.id
    assert say(world, who="mallory@im.wechat", to=guest.id)["bot"] == guest.id


def test_nobody_can_write_before_a_scan_and_unknown_people_not_at_all() -> None:
    world = new_world()
    world.add_person(person_id="alice@im.wechat", name="", now=NOON)

    with pytest.raises(Impossible, match="nobody has scanned"):
        say(world)
    with pytest.raises(Impossible, match="no such person"):
        say(world, who="nobody@im.wechat")


# --- login ------------------------------------------------------------------------------------------------------------


def test_a_new_scan_makes_a_new_bot_and_revokes_the_old_one_later() -> None:
    world = new_world(revoke_after_s=29)
    old, new = new_bot(world), new_bot(world)

    assert (old.id, old.token) != (new.id, new.token)
    assert old.alive(NOON + 28.9)
    assert not old.alive(NOON + 29)
    assert new.alive(NOON + DAY_S)


def test_only_bot_type_3_is_offered() -> None:
    assert new_world().create_ticket("1", [], NOON)["ret"] == 2


def test_a_known_bot_of_the_scanner_may_be_recognised() -> None:
    world = new_world(recognise_bound="always")
    bot = new_bot(world)
    ticket = world.create_ticket("3", [bot.token], NOON)["qrcode"]

    world.scan(ticket, bot.owner, Action.CONFIRM, NOON, verify_code="", redirect="")

    assert world.ticket_status(ticket, "", "sim", NOON) == {"status": "binded_redirect"}


# --- sends ------------------------------------------------------------------------------------------------------------


def test_the_eleventh_send_per_inbound_message_fails_and_the_next_one_refills() -> None:
    world = new_world()
    bot = new_bot(world)
    token = say(world)["context_token"]

    answers = [send(world, bot, token) for _ in range(11)]
    renewed = send(world, bot, say(world)["context_token"])

    assert [a["ret"] for a in answers] == [0] * 10 + [-2]
    assert answers[-1] == {"ret": -2, "errmsg": "prepare failed"}
    assert renewed["ret"] == 0


def test_the_window_closes_24_hours_after_the_last_inbound_message() -> None:
    world = new_world()
    bot = new_bot(world)
    token = say(world)["context_token"]

    assert send(world, bot, token, now=NOON + DAY_S - 1)["ret"] == 0
    assert send(world, bot, token, now=NOON + DAY_S)["ret"] == -2


def test_nothing_is_taken_before_the_person_ever_wrote() -> None:
    world = new_world()

    assert send(world, new_bot(world), "token") == {"ret": -2, "errmsg": "prepare failed"}


def test_a_repeated_client_id_is_accepted_with_the_same_id_and_shown_once() -> None:
    world = new_world()
    bot = new_bot(world)
    token = say(world)["context_token"]

    first, second = send(world, bot, token, client_id="x"), send(world, bot, token, client_id="x")

    assert first == second
    assert shown(world) == ["yes"]
    assert [s["outcome"] for s in world.sends] == ["delivered", "repeat"]
    assert world.phone(bot.owner, NOON)["bots"][0]["budget_left"] == 9


def test_sends_without_a_client_id_share_one_key() -> None:
    world = new_world()
    bot = new_bot(world)
    token = say(world)["context_token"]

    send(world, bot, token, "one", client_id="")
    send(world, bot, token, "two", client_id=None)

    assert shown(world) == ["one"]


@pytest.mark.parametrize("token", [None, "", "invented"])
def test_a_send_without_a_valid_reply_token_is_accepted_and_not_shown(token: str | None) -> None:
    world = new_world()
    bot = new_bot(world)
    say(world)

    assert send(world, bot, token) == {"ret": 0}
    assert shown(world) == []


def test_an_older_reply_token_stays_valid_and_another_persons_is_none() -> None:
    world = new_world()
    bot = new_bot(world)
    world.add_person(person_id="bob@im.wechat", name="", now=NOON)
    old = say(world)["context_token"]
    say(world)
    bobs = say(world, who="bob@im.wechat")["context_token"]

    assert "message_id" in send(world, bot, old)
    assert "message_id" not in send(world, bot, bobs)


def test_checks_come_in_the_services_order() -> None:
    world = new_world()
    bot = new_bot(world)
    token = say(world)["context_token"]
    long, stranger = "长" * 6000, "ALICE@im.wechat"
    send(world, bot, token, client_id="x")
    for _ in range(9):
        send(world, bot, token)

    everything_wrong = send(world, bot, token, long, to_user_id=stranger, item_list=[], client_id="x")
    wrong_receiver = send(world, bot, token, long, to_user_id=stranger, client_id="x")
    no_budget = send(world, bot, token, client_id="x")

    assert everything_wrong == {"ret": -2, "errmsg": "invalid arguments"}
    assert wrong_receiver == {"ret": -3, "errmsg": "invalid arguments"}
    assert no_budget == {"ret": -2, "errmsg": "prepare failed"}


def test_text_is_measured_in_bytes_of_utf_8() -> None:
    world = new_world()
    bot = new_bot(world)
    token = say(world)["context_token"]

    assert send(world, bot, token, "长" * 5461)["ret"] == 0
    assert send(world, bot, token, "长" * 5462) == {"ret": -2, "errmsg": "prepare failed"}


@pytest.mark.parametrize(
    "changes",
    [
        {"item_list": None},
        {"item_list": [{"type": 1, "text_item": {"text": "a"}}] * 2},
        {"item_list": [{"type": 1, "text_item": {"text": ""}}]},
        {"item_list": [{"type": 1}]},
        {"item_list": [{"type": 77, "text_item": {"text": "a"}}]},
        {"item_list": ["text"]},
        {"message_type": 1},
        {"message_state": 7},
    ],
)
def test_a_malformed_send_has_invalid_arguments(changes: Json) -> None:
    world = new_world()
    bot = new_bot(world)

    assert send(world, bot, say(world)["context_token"], **changes) == {"ret": -2, "errmsg": "invalid arguments"}


@pytest.mark.parametrize(
    "item",
    [
        {"type": 1, "create_time_ms": 1, "text_item": {"text": "a"}},
        {"type": 2, "image_item": {"aeskey": "00", "media": {}}},
        {"type": 2, "image_item": {"media": {"full_url": "http://x"}}},
    ],
)
def test_members_that_only_the_service_sets_are_refused(item: Json) -> None:
    world = new_world()
    bot = new_bot(world)

    answer = send(world, bot, say(world)["context_token"], item_list=[item])

    assert answer == {"ret": -2, "errmsg": "prepare failed"}


@pytest.mark.parametrize("kind", [("voice_item", 3), ("tool_call_start_item", 11), ("tool_call_result_item", 12)])
def test_kinds_that_no_phone_draws_are_accepted_and_not_shown(kind: tuple[str, int]) -> None:
    world = new_world()
    bot = new_bot(world)
    member, number = kind

    answer = send(world, bot, say(world)["context_token"], item_list=[{"type": number, member: {}}])

    assert "message_id" in answer
    assert world.sends[-1]["outcome"] == "hidden"
    assert shown(world) == []


def test_the_throttle_punishes_bursts_and_attempts_prolong_it() -> None:
    world = new_world()
    bot = new_bot(world)
    world.panel.set(faults.Throttle(count=3, window_ms=1000, pause_ms=60_000))
    token = say(world)["context_token"]

    rets = [send(world, bot, token, now=NOON + at)["ret"] for at in (0, 0.1, 0.2, 50, 105, 170)]

    assert rets == [0, 0, -2, -2, -2, 0]


def test_an_unconfirmed_send_looks_accepted_and_may_be_shown_or_not() -> None:
    for answer, delivery, expected in (("ret", "dropped", []), ("object", "delivered", ["yes"])):
        world = new_world()
        bot = new_bot(world)
        world.panel.set(faults.NoMessageId(answer=answer, delivery=delivery))  # type: ignore[arg-type]

        told = send(world, bot, say(world)["context_token"])

        assert told == ({"ret": 0} if answer == "ret" else {})
        assert shown(world) == expected


def test_long_texts_are_cut_on_the_phone_only_by_the_switch() -> None:
    world = new_world()
    bot = new_bot(world)
    token = say(world)["context_token"]
    send(world, bot, token, "长" * 2500)
    world.panel.set(faults.TruncateText(limit=2000, times=1))
    send(world, bot, token, "长" * 2500)
    world.panel.set(faults.TruncateText(limit=2048, unit="bytes"))
    send(world, bot, token, "长" * 2500)

    assert [len(text) for text in shown(world)] == [2500, 2000, 682]


# --- media ------------------------------------------------------------------------------------------------------------


def uploaded(world: World, bot: Bot, plain: bytes, key: bytes) -> str:
    body = {
        "filekey": "0" * 32,
        "media_type": 1,
        "to_user_id": bot.owner,
        "rawsize": len(plain),
        "rawfilemd5": md5_hex(plain),
        "filesize": padded_size(len(plain)),
        "no_need_thumb": True,
        "aeskey": key.hex(),
    }
    ticket = world.shelves.upload(world.upload_url(bot, body)["upload_param"], "0" * 32, encrypt(key, plain))
    assert ticket is not None
    return ticket


@pytest.mark.parametrize(
    ("form", "right_key", "problem"),
    [
        (KeyForm.HEX, True, ""),
        (KeyForm.RAW, True, "the key is in the wrong form"),
        (KeyForm.HEX, False, "the key does not fit"),
    ],
)
def test_a_phone_opens_a_picture_only_with_its_key_in_hex_form(form: KeyForm, right_key: bool, problem: str) -> None:
    world = new_world()
    bot = new_bot(world)
    token, key = say(world)["context_token"], bytes(range(16))
    ticket = uploaded(world, bot, b"picture", key)
    told_key = key if right_key else bytes(16)
    media = {"encrypt_query_param": ticket, "aes_key": write_key(told_key, form), "encrypt_type": 1}

    send(world, bot, token, item_list=[{"type": 2, "image_item": {"media": media, "mid_size": 16}}])

    picture = world.phone(bot.owner, NOON)["bubbles"][-1]["media"]
    assert picture["problem"] == problem
    assert (world.media[picture["id"]].plain == b"picture") is (problem == "")


def test_what_a_person_attaches_can_be_fetched_and_opened_with_the_told_key() -> None:
    world = new_world()
    bot = new_bot(world)
    world.say(bot.owner, Said(attachment=Attachment(kind="file", data=b"%PDF", name="a.pdf")), NOON)
    world.say(bot.owner, Said(attachment=Attachment(kind="image", data=b"plain", key_form="absent")), NOON)

    pdf, image = [message["item_list"][0] for message in poll(world, bot)["msgs"]]

    media = pdf["file_item"]["media"]
    stored = world.shelves.fetch(media["encrypt_query_param"])
    assert stored is not None
    assert decrypt(read_key(media["aes_key"])[0], stored.secret) == b"%PDF"
    bare = world.shelves.fetch(image["image_item"]["media"]["encrypt_query_param"])
    assert bare is not None
    assert bare.secret == b"plain"


def test_the_wrong_key_switch_tells_a_key_that_does_not_fit() -> None:
    world = new_world()
    bot = new_bot(world)
    world.panel.set(faults.WrongKey())
    world.say(bot.owner, Said(attachment=Attachment(kind="file", data=b"%PDF", name="a.pdf")), NOON)

    media = poll(world, bot)["msgs"][0]["item_list"][0]["file_item"]["media"]

    stored = world.shelves.fetch(media["encrypt_query_param"])
    assert stored is not None and stored.key is not None
    assert read_key(media["aes_key"])[0] != stored.key


@pytest.mark.parametrize(
    ("change", "ret"),
    [
        ({"filekey": "short"}, -2),
        ({"aeskey": "zz" * 16}, -2),
        ({"media_type": 9}, -2),
        ({"filesize": 8}, -2),
        ({"rawsize": -1}, -2),
        ({"to_user_id": "nobody@im.wechat"}, -1),
    ],
)
def test_an_upload_url_is_given_only_for_sound_figures(change: Json, ret: int) -> None:
    world = new_world()
    bot = new_bot(world)
    body: Json = {
        "filekey": "0" * 32,
        "media_type": 1,
        "to_user_id": bot.owner,
        "rawsize": 0,
        "rawfilemd5": "0" * 32,
        "filesize": 16,
        "no_need_thumb": True,
        "aeskey": "0" * 32,
    }

    assert world.upload_url(bot, body | change)["ret"] == ret
    assert "upload_full_url" in world.upload_url(bot, body)
    assert "upload_full_url" not in world.upload_url(bot, {**body, "no_need_thumb": False})


def test_a_quote_finds_what_the_quoted_message_said() -> None:
    world = new_world()
    bot = new_bot(world)
    answered = send(world, bot, say(world)["context_token"], "the plan")
    poll(world, bot)

    world.say(bot.owner, Said(text="this one", quote=QuoteOf(message_id=str(answered["message_id"]))), NOON)

    reference = poll(world, bot)["msgs"][0]["item_list"][0]["ref_msg"]
    assert reference["svr_id"] == answered["message_id"]
    assert reference["message_item"]["text_item"]["text"] == "the plan"


# --- typing -----------------------------------------------------------------------------------------------------------


def test_a_typing_ticket_needs_a_person_who_wrote_within_a_day() -> None:
    world = new_world()
    bot = new_bot(world)

    assert world.config(bot, {}, NOON)["ret"] == -2
    assert world.config(bot, {"ilink_user_id": bot.owner}, NOON)["ret"] == -4
    say(world)
    assert world.config(bot, {"ilink_user_id": bot.owner}, NOON)["ret"] == 0
    assert world.config(bot, {"ilink_user_id": bot.owner}, NOON + DAY_S)["ret"] == -4


def test_typing_shows_until_stopped_and_its_ticket_lives_ten_minutes() -> None:
    world = new_world()
    bot = new_bot(world)
    say(world)
    ticket = world.config(bot, {"ilink_user_id": bot.owner}, NOON)["typing_ticket"]
    body = {"ilink_user_id": bot.owner, "typing_ticket": ticket, "status": 1}

    assert world.typing(bot, body, NOON) == {"ret": 0}
    assert world.phone(bot.owner, NOON)["bots"][0]["typing"] is True
    assert world.typing(bot, {**body, "status": 2}, NOON + 599) == {"ret": 0}
    assert world.phone(bot.owner, NOON + 599)["bots"][0]["typing"] is False
    assert world.typing(bot, body, NOON + 600)["ret"] == -2
    assert [t["state"] for t in world.phone(bot.owner, NOON)["typing_log"]] == ["typing", "stopped"]


def test_raw_messages_of_any_shape_are_handed_out_verbatim() -> None:
    world = new_world()
    bot = new_bot(world)
    shapes: list[Any] = [None, 7, "text", [], {"item_list": "no"}, {"message_id": 2**64 - 1}]
    for shape in shapes:
        world.say(bot.owner, Said(raw=shape), NOON)

    assert poll(world, bot)["msgs"] == shapes


def test_every_change_is_a_numbered_event() -> None:
    world = new_world()
    bot = new_bot(world)
    send(world, bot, say(world)["context_token"])

    kinds = [event["event"] for event in world.events]
    assert [event["seq"] for event in world.events] == list(range(1, len(kinds) + 1))
    assert kinds == ["person", "ticket", "scan", "bot", "said", "bubble", "sent"]


def test_cursors_are_opaque_base64() -> None:
    world = new_world()

    assert base64.b64decode(poll(world, new_bot(world))["get_updates_buf"], validate=True)
