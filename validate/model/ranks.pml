/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of the model that sparse.pml describes, and its end. Included there. */

/* ---- A source ---- */

#define NOW source_at[rail]

inline choose(tok)
{
    if
    :: true /* none in this domain */
    :: needs = needs | OWN << (2 * tok)
    :: needs = needs | OTHER << (2 * tok)
    :: needs = needs | (OWN | OTHER) << (2 * tok)
    fi
}

inline send_token(tok)
{
    if
    :: tok < tokens && NEEDS(needs, tok) != 0 ->
        rail_lane[AT(rail, tok)] ! ROW, NOW, NEEDS(needs, tok);
        rail_lane[AT(rail, tok)] ! WORD, NOW, 1
    :: tok < tokens && NEEDS(needs, tok) == 0 -> rail_lane[AT(rail, tok)] ! WORD, NOW, 0
    :: else
    fi
}

inline dispatch()
{
    NOW = AFTER(NOW);
#if N == 0
    assert(NOW != AFTER(AFTER(ffn_at[rail])));
#endif
    if
    :: tokens = 0
    :: tokens = 1; choose(0)
#if C == 2
    :: tokens = 2; choose(0); choose(1)
#endif
    fi;
    d_step {
        count_lane[rail] ! NOW, tokens;
        send_token(0);
#if C == 2
        send_token(1);
#endif
        tokens = 0
    }
}

#define COLLECTABLE(tok) (!COLLECT_AWAITS(tok) || combine_tail[AT(rail, tok)] != 0)
#define WITNESSED (!WITNESS_AWAITED || witness[rail] == NOW)

inline collect(tok)
{
    COLLECTABLE(tok);
    if
    :: NEEDS(needs, tok) != 0 ->
        assert(!COLLECT_AWAITS(tok) || combine_tail[AT(rail, tok)] == NOW);
        assert(combine_slot[AT(rail, tok)] == NOW);
        assert(combine_ranks[AT(rail, tok)] == NEEDS(needs, tok));
        combine_tail[AT(rail, tok)] = 0;
        combine_slot[AT(rail, tok)] = 0;
        combine_ranks[AT(rail, tok)] = 0
    :: else
    fi
}

inline read_witness()
{
    WITNESSED;
    if
    :: WITNESS_AWAITED -> witness[rail] = 0
    :: else
    fi;
    needs = 0
}

proctype source(byte rail)
{
    byte tokens, needs; /* needs: two bits for each token */
    atomic { dispatch() };
    do
    :: TOGETHER {
           d_step {
#ifndef FINE
               COLLECTABLE(0) && COLLECTABLE(C - 1) && WITNESSED;
#endif
               collect(0)
#if C == 2
               CUT
               collect(1)
#endif
               CUT
               read_witness()
           };
           if
           :: AFTER(NOW) == END -> break
           :: else -> atomic { dispatch() }
           fi
       }
    od;
    ended++
}

#undef NOW

/* ---- An FFN rank ---- */

#define NOW ffn_at[rail]

inline send_rows()
{
    if
    :: TO_OTHER(record) & 1 -> domain_lane[1 - rail] ! ROW, NOW, 0
    :: else
    fi;
    if
    :: TO_OTHER(record) & 2 -> domain_lane[1 - rail] ! ROW, NOW, 1
    :: else
    fi
}

/* After a channel was retired, or all channels without tokens. The last one ends forwarding. */
inline retired()
{
    if
#ifdef NO_ZERO_WORDS
    :: pending == 0 && TO_OTHER(record) != 0 ->
#else
    :: pending == 0 ->
#endif
#ifndef FINE
        send_rows();
#endif
        domain_lane[1 - rail] ! WORD, NOW, TO_OTHER(record)
    :: else
    fi
#ifdef WITNESS_AT_FORWARD_END
    ;
    if
    :: pending == 0 -> witness_lane[rail] ! NOW
    :: else
    fi
#endif
}

inline read_count()
{
    d_step {
        !known && NOW != END && COUNT_CAME;
#if defined(UNTAGGED_COUNT) || defined(UNTAGGED_COUNT_CHANGE)
        last_tokens = count_tokens[rail];
        pending = (1 << last_tokens) - 1;
#else
        assert(count_word[rail] == NOW);
        pending = (1 << count_tokens[rail]) - 1;
        count_tokens[rail] = 0;
#endif
        count_word[rail] = 0;
        known = 1;
#ifdef WITNESS_CHANNEL_0
        if
        :: (pending & 1) == 0 -> witness_lane[rail] ! NOW
        :: else
        fi;
#endif
        retired()
    }
}

/* Channel ch: its finish tail came. A row for this rank stays in the rail inbox. */
inline forward(ch)
{
    d_step {
        known && (pending & 1 << ch) && finish_tail[AT(rail, ch)] != 0;
        assert(finish_tail[AT(rail, ch)] == NOW);
        if
        :: finish_rows[AT(rail, ch)] != 0 ->
            assert(slot[AT(rail, ch)] == NOW);
            record = record | slot_needs[AT(rail, ch)] << (2 * ch);
#ifdef FINE
            if
            :: slot_needs[AT(rail, ch)] & OTHER -> domain_lane[1 - rail] ! ROW, NOW, ch
            :: else
            fi;
#endif
            if
            :: slot_needs[AT(rail, ch)] == OTHER -> slot[AT(rail, ch)] = 0
            :: else
            fi;
            slot_needs[AT(rail, ch)] = 0
        :: else
        fi;
        finish_tail[AT(rail, ch)] = 0;
        finish_rows[AT(rail, ch)] = 0;
        pending = pending & ~(1 << ch);
#ifdef WITNESS_CHANNEL_0
        if
        :: ch == 0 -> witness_lane[rail] ! NOW
        :: else
        fi;
#endif
        retired()
    }
}

/* Reads what receive lays out for a token: its row in the rail inbox, the row that came over the other rail. */
inline lay_out(tok)
{
    if
    :: NEEDS(record, tok) & OWN ->
        assert(slot[AT(rail, tok)] == NOW);
        slot[AT(rail, tok)] = 0
    :: else
    fi;
    if
    :: arrived & 1 << tok ->
        assert(domain_slot[AT(rail, tok)] == NOW);
        domain_slot[AT(rail, tok)] = 0
    :: else
    fi
}

inline read_extents()
{
    if
    :: arrived != 0 ->
        assert(extents[rail] == NOW);
        extents[rail] = 0
    :: else
    fi
}

inline send_witness()
{
#if defined(NO_WITNESS) || defined(WITNESS_CHANNEL_0) || defined(WITNESS_AT_FORWARD_END)
    skip
#elif defined(WITNESS_SERVED_ONLY)
    if
    :: record != 0 -> witness_lane[rail] ! NOW
    :: else
    fi
#else
    witness_lane[rail] ! NOW
#endif
}

/* Partials for the other rail's rows, then the word, if rows came. */
inline send_partials()
{
    if
    :: arrived & 1 -> domain_lane[1 - rail] ! PARTIAL, NOW, 0
    :: else
    fi;
    if
    :: arrived & 2 -> domain_lane[1 - rail] ! PARTIAL, NOW, 1
    :: else
    fi;
    if
    :: arrived != 0 -> domain_lane[1 - rail] ! REPLY, NOW, arrived
    :: else
    fi;
    arrived = 0
}

inline read_reply_word()
{
    if
    :: TO_OTHER(record) != 0 ->
#ifndef REPLY_NOT_AWAITED
        assert(reply_word[rail] == NOW && reply_rows[rail] == TO_OTHER(record));
#endif
        reply_word[rail] = 0;
        reply_rows[rail] = 0
    :: else
    fi
}

/* reply_forward: the sum goes to the source, with the combine signal, on the row's channel. */
inline send_back(ch)
{
    if
    :: NEEDS(record, ch) & OTHER ->
        assert(partial[AT(rail, ch)] == NOW);
        partial[AT(rail, ch)] = 0
    :: else
    fi;
    if
    :: NEEDS(record, ch) != 0 ->
        reply_lane[AT(rail, ch)] ! ROW, NOW, NEEDS(record, ch);
        reply_lane[AT(rail, ch)] ! WORD, NOW, 1
    :: else
    fi
}

proctype ffn(byte rail)
{
    byte pending;         /* receive: channels that are not retired */
    byte record;          /* needs of what was forwarded, two bits for each token */
    byte arrived;         /* tokens that came over the other rail */
    bit known;            /* T is */
#if defined(UNTAGGED_COUNT) || defined(UNTAGGED_COUNT_CHANGE)
    byte last_tokens;
#endif
    do
    :: read_count()
    :: forward(0)
#if C == 2
    :: forward(1)
#endif
    :: d_step {
           known && pending == 0 && forward_word[ENTRY(rail, NOW)] != 0;
           assert(forward_word[ENTRY(rail, NOW)] == NOW);
           arrived = forward_rows[ENTRY(rail, NOW)];
           forward_word[ENTRY(rail, NOW)] = 0;
           forward_rows[ENTRY(rail, NOW)] = 0
           CUT
           read_extents();
           lay_out(0);
#if C == 2
           lay_out(1)
#endif
           CUT
           send_witness();
           send_partials()
       };
       d_step {
           REPLIED;
           read_reply_word()
           CUT
           send_back(0);
#if C == 2
           send_back(1);
#endif
           record = 0;
           known = 0;
           NOW = AFTER(NOW);
#if N == 0
           assert(NOW != AFTER(AFTER(source_at[rail])) && NOW != AFTER(AFTER(ffn_at[1 - rail])))
#endif
       }
    :: NOW == END -> break
    od;
    ended++
}

#undef NOW

/* ---- The whole ---- */

#define LEFT_ON(at) /* on a channel */ \
    (len(rail_lane[at]) + len(reply_lane[at]) + finish_tail[at] + slot[at] + domain_slot[at] + partial[at] + \
     combine_slot[at] + combine_tail[at])
#define LEFT_AT(rail) /* elsewhere */ \
    (len(count_lane[rail]) + len(domain_lane[rail]) + len(witness_lane[rail]) + count_word[rail] + \
     forward_word[2 * (rail)] + forward_word[2 * (rail) + 1] + extents[rail] + reply_word[rail])

init {
    atomic {
        ffn_at[0] = 1;
        ffn_at[1] = 1;
        run source(0);
        run source(1);
        run ffn(0);
        run ffn(1)
    };
    ended == 4;
    d_step { /* nothing was sent that nobody read */
        leftover = LEFT_AT(0) + LEFT_AT(1) + LEFT_ON(0) + LEFT_ON(1);
#if C == 2
        leftover = leftover + LEFT_ON(2) + LEFT_ON(3);
#endif
        assert(leftover == 0)
    }
}
