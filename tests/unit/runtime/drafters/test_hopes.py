"""What a text lets the next one hope for: whether a draft model reads its prompt."""

from __future__ import annotations

from engines import by_model, plain_engine, request, tokens_of
from toys import toy_model

from edgespec.runtime.drafters.model import FIRST_LENGTH
from edgespec.runtime.drafters.reader import FIRST_ACCEPTANCE
from edgespec.runtime.speculation.engine import Engine

SHORT = (1, 2, 3)
LONG = tuple(n * n % 50 for n in range(256))
# By these costs reading LONG pays for a text of 40 tokens where nothing is known, and no more
# where a draft was always wrong. Rows cost nothing, so that trials of rounds lose nothing either.
TARGET, DRAFT = (1.0, 0.0), (0.2, 0.03)


def engine_of(noise):
    drafter = by_model(toy_model(noise, cost=DRAFT))
    return Engine(toy_model(cost=TARGET), [drafter])


def hope_of(engine, **how):
    [drafter] = engine.drafters
    return drafter.grower.hopes.acceptance(engine.add(request(SHORT, 1, **how)))


def reads(engine, asked):
    """Whether the draft model has a part in a text, which is plain decoding's."""
    rounds = list(engine.generate(asked))
    tokens = [token for made in rounds for token in made.tokens]
    assert tokens == tokens_of(plain_engine(), asked)
    return any(made.source == "model" for made in rounds)


def hopes_behind_texts(engine):
    found = [hope_of(engine)]
    for number in range(4):
        assert reads(engine, request((*SHORT, number), 60))
        found.append(hope_of(engine))
    return found


def test_texts_teach_the_next_one_what_to_hope_for():
    right, wrong = engine_of(0.0), engine_of(30.0)
    of_right, of_wrong = hopes_behind_texts(right), hopes_behind_texts(wrong)
    assert of_right[0] == of_wrong[0] == FIRST_ACCEPTANCE
    assert of_wrong == sorted(of_wrong, reverse=True)
    assert of_right[-1] > of_wrong[-1] + 0.1
    assert hope_of(wrong, temperature=1.0) == FIRST_ACCEPTANCE
    wrong.forget()
    assert hope_of(wrong) == FIRST_ACCEPTANCE


def test_a_long_prompt_is_read_by_what_earlier_texts_let_hope():
    asked = request(LONG, 40)
    assert reads(engine_of(0.0), asked)
    engine = engine_of(30.0)
    for number in range(8):
        reads(engine, request((*SHORT, number), 60))
    assert not reads(engine, asked)
    engine.forget()
    assert reads(engine, asked)


def test_what_was_not_read_is_tried_again():
    engine = engine_of(30.0)
    for number in range(8):
        reads(engine, request((*SHORT, number), 60))
    tried = [reads(engine, request((number, *LONG), 40)) for number in range(20)]
    assert not tried[0]
    assert any(tried)


def test_nor_does_a_shared_beginning_count_as_read():
    engine = engine_of(30.0)
    for number in range(8):
        reads(engine, request((*SHORT, number), 60))
    tried = [reads(engine, request((*SHORT, 0, number, *LONG), 40)) for number in range(20)]
    assert not tried[0]
    assert any(tried)


def tokens_until_read(engine, asked):
    """How many tokens come before the draft model has a part in a text."""
    count = 0
    for made in engine.generate(asked):
        if made.source == "model":
            return count
        count += len(made.tokens)
    return None


def teach_lengths(engine, count, **how):
    for number in range(12):
        prompt = (*SHORT, number)
        [*_, last] = tokens_of(plain_engine(), request(prompt, count))
        found = tokens_of(engine, request(prompt, how.get("limit", 200), stop=[last]))
        assert len(found) <= count


def test_a_long_prompt_is_read_at_once_where_texts_are_mostly_long():
    assert tokens_until_read(engine_of(0.0), request(LONG, 200)) < 2


def test_where_texts_are_short_it_is_read_once_a_text_has_grown_long():
    engine = engine_of(0.0)
    teach_lengths(engine, 4)
    assert tokens_until_read(engine, request(LONG, 12)) is None
    assert 12 < tokens_until_read(engine, request(LONG, 200)) < 60
    engine.forget()
    assert tokens_until_read(engine, request(LONG, 200)) < 2


def test_texts_that_were_cut_do_not_count_as_short():
    engine = engine_of(0.0)
    teach_lengths(engine, 4, limit=3)
    assert tokens_until_read(engine, request(LONG, 200)) < 2


def test_nor_do_texts_that_have_no_token_yet_or_failed():
    engine = engine_of(0.0)
    [drafter] = engine.drafters
    for number in range(12):
        begun = engine.add(request((number, *LONG, *LONG, *LONG), 200))
        engine.step()
        assert begun.new_tokens == 0
        engine.remove(begun)
        failed = engine.add(request((*SHORT, number), 200))
        engine.step()
        failed.fail(RuntimeError("its pass failed"))
        engine.remove(failed)
    assert drafter.grower.hopes.further(engine.add(request(SHORT, 900))) == FIRST_LENGTH


def test_further_tokens_are_never_more_than_may_follow():
    engine = engine_of(0.0)
    [drafter] = engine.drafters
    hopes = drafter.grower.hopes
    assert hopes.further(engine.add(request(SHORT, 5))) == 5
    assert hopes.further(engine.add(request(SHORT, 900))) == FIRST_LENGTH
    generation = engine.add(request(SHORT, 900))
    while generation.new_tokens <= FIRST_LENGTH:
        engine.step()
    assert hopes.further(generation) == generation.new_tokens
