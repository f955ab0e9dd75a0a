"""The tables of facts that the knowledge topics ask about."""

from __future__ import annotations

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Austria": "Vienna", "Switzerland": "Bern", "Belgium": "Brussels", "the Netherlands": "Amsterdam",
    "Denmark": "Copenhagen", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Iceland": "Reykjavik",
    "Ireland": "Dublin", "the United Kingdom": "London", "England": "London", "Scotland": "Edinburgh",
    "Wales": "Cardiff", "Poland": "Warsaw", "the Czech Republic": "Prague", "Slovakia": "Bratislava",
    "Hungary": "Budapest", "Romania": "Bucharest", "Bulgaria": "Sofia", "Greece": "Athens", "Turkey": "Ankara",
    "Croatia": "Zagreb", "Serbia": "Belgrade", "Slovenia": "Ljubljana", "Ukraine": "Kyiv", "Russia": "Moscow",
    "Estonia": "Tallinn", "Latvia": "Riga", "Lithuania": "Vilnius", "the United States": "Washington, D.C.",
    "Canada": "Ottawa", "Mexico": "Mexico City", "Brazil": "Brasilia", "Argentina": "Buenos Aires",
    "Chile": "Santiago", "Peru": "Lima", "Colombia": "Bogota", "Cuba": "Havana", "Uruguay": "Montevideo",
    "Venezuela": "Caracas", "Ecuador": "Quito", "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi",
    "South Korea": "Seoul", "North Korea": "Pyongyang", "Thailand": "Bangkok", "Vietnam": "Hanoi",
    "Indonesia": "Jakarta", "the Philippines": "Manila", "Mongolia": "Ulaanbaatar", "Nepal": "Kathmandu",
    "Pakistan": "Islamabad", "Iran": "Tehran", "Iraq": "Baghdad", "Saudi Arabia": "Riyadh", "Egypt": "Cairo",
    "Morocco": "Rabat", "Kenya": "Nairobi", "Nigeria": "Abuja", "Ethiopia": "Addis Ababa", "Ghana": "Accra",
    "Tunisia": "Tunis", "Algeria": "Algiers", "Senegal": "Dakar", "Australia": "Canberra",
    "New Zealand": "Wellington",
}  # fmt: skip

COLOUR_MIXES = (
    ("red", "blue", "purple"), ("red", "yellow", "orange"), ("blue", "yellow", "green"), ("red", "white", "pink"),
    ("black", "white", "grey"), ("blue", "white", "light blue"), ("red", "green", "brown"),
    ("orange", "blue", "brown"), ("green", "white", "light green"), ("yellow", "white", "light yellow"),
    ("purple", "white", "lilac"), ("red", "black", "dark red"), ("blue", "black", "dark blue"),
)  # fmt: skip

COLOUR_OF = {
    "the sky": "blue", "grass": "green", "snow": "white", "coal": "black", "a banana": "yellow", "a lemon": "yellow",
    "a tomato": "red", "a strawberry": "red", "an orange": "orange", "a carrot": "orange", "blood": "red",
    "the sea": "blue", "milk": "white", "chocolate": "brown", "the sun": "yellow", "a leaf": "green",
    "an elephant": "grey", "a flamingo": "pink", "a fire engine": "red", "an eggplant": "purple", "a frog": "green",
    "a pumpkin": "orange", "a cloud": "white", "the night sky": "black", "coffee": "brown", "gold": "yellow",
    "a ruby": "red", "an emerald": "green", "a sapphire": "blue", "a cucumber": "green", "a lime": "green",
    "a cherry": "red", "salt": "white", "rice": "white", "a raven": "black", "a polar bear": "white",
}  # fmt: skip

ANIMALS = {  # animal: (sound, young, legs, home)
    "dog": ("woof", "puppy", 4, "a house"), "cat": ("meow", "kitten", 4, "a house"),
    "cow": ("moo", "calf", 4, "a farm"), "sheep": ("baa", "lamb", 4, "a farm"), "pig": ("oink", "piglet", 4, "a farm"),
    "horse": ("neigh", "foal", 4, "a stable"), "duck": ("quack", "duckling", 2, "a pond"),
    "hen": ("cluck", "chick", 2, "a farm"), "goat": ("bleat", "kid", 4, "a farm"), "lion": ("roar", "cub", 4, "Africa"),
    "frog": ("croak", "tadpole", 4, "a pond"), "bee": ("buzz", "larva", 6, "a hive"),
    "owl": ("hoot", "owlet", 2, "the forest"), "wolf": ("howl", "pup", 4, "the forest"),
    "mouse": ("squeak", "pup", 4, "a hole"), "bear": ("growl", "cub", 4, "the forest"),
    "goose": ("honk", "gosling", 2, "a pond"), "elephant": ("trumpet", "calf", 4, "Africa"),
    "snake": ("hiss", "snakelet", 0, "the grass"), "donkey": ("hee-haw", "foal", 4, "a farm"),
    "bird": ("tweet", "chick", 2, "a nest"), "tiger": ("roar", "cub", 4, "Asia"),
    "crow": ("caw", "chick", 2, "a tree"), "fox": ("bark", "kit", 4, "the forest"),
    "spider": ("nothing", "spiderling", 8, "a web"), "kangaroo": ("grunt", "joey", 2, "Australia"),
    "swan": ("honk", "cygnet", 2, "a lake"), "penguin": ("squawk", "chick", 2, "the Antarctic"),
    "camel": ("grunt", "calf", 4, "the desert"), "whale": ("song", "calf", 0, "the sea"),
    "rabbit": ("squeak", "kit", 4, "a burrow"), "monkey": ("chatter", "infant", 2, "the jungle"),
}  # fmt: skip

OPPOSITES = (
    ("hot", "cold"), ("big", "small"), ("up", "down"), ("fast", "slow"), ("day", "night"), ("black", "white"),
    ("open", "closed"), ("happy", "sad"), ("full", "empty"), ("old", "young"), ("high", "low"), ("left", "right"),
    ("hard", "soft"), ("light", "dark"), ("early", "late"), ("good", "bad"), ("rich", "poor"), ("wet", "dry"),
    ("strong", "weak"), ("loud", "quiet"), ("long", "short"), ("thick", "thin"), ("clean", "dirty"), ("true", "false"),
    ("near", "far"), ("inside", "outside"), ("begin", "end"), ("win", "lose"), ("buy", "sell"), ("love", "hate"),
    ("first", "last"), ("heavy", "light"), ("sweet", "sour"), ("wide", "narrow"), ("deep", "shallow"),
    ("push", "pull"), ("yes", "no"), ("always", "never"), ("front", "back"), ("above", "below"), ("safe", "dangerous"),
    ("easy", "difficult"), ("simple", "complex"), ("smooth", "rough"), ("new", "old"), ("on", "off"),
    ("alive", "dead"), ("awake", "asleep"), ("brave", "afraid"), ("summer", "winter"), ("north", "south"),
    ("east", "west"), ("top", "bottom"), ("same", "different"), ("give", "take"), ("laugh", "cry"),
)  # fmt: skip

LANGUAGES = ("French", "German", "Spanish", "Italian")
TRANSLATIONS = {  # English: in the order of LANGUAGES
    "hello": ("bonjour", "hallo", "hola", "ciao"), "goodbye": ("au revoir", "auf Wiedersehen", "adiós", "arrivederci"),
    "thank you": ("merci", "danke", "gracias", "grazie"), "yes": ("oui", "ja", "sí", "sì"),
    "no": ("non", "nein", "no", "no"), "please": ("s'il vous plaît", "bitte", "por favor", "per favore"),
    "water": ("eau", "Wasser", "agua", "acqua"), "bread": ("pain", "Brot", "pan", "pane"),
    "milk": ("lait", "Milch", "leche", "latte"), "house": ("maison", "Haus", "casa", "casa"),
    "dog": ("chien", "Hund", "perro", "cane"), "cat": ("chat", "Katze", "gato", "gatto"),
    "book": ("livre", "Buch", "libro", "libro"), "friend": ("ami", "Freund", "amigo", "amico"),
    "sun": ("soleil", "Sonne", "sol", "sole"), "moon": ("lune", "Mond", "luna", "luna"),
    "tree": ("arbre", "Baum", "árbol", "albero"), "day": ("jour", "Tag", "día", "giorno"),
    "night": ("nuit", "Nacht", "noche", "notte"), "red": ("rouge", "rot", "rojo", "rosso"),
    "blue": ("bleu", "blau", "azul", "blu"), "green": ("vert", "grün", "verde", "verde"),
    "one": ("un", "eins", "uno", "uno"), "two": ("deux", "zwei", "dos", "due"), "three": ("trois", "drei", "tres", "tre"),
    "apple": ("pomme", "Apfel", "manzana", "mela"), "love": ("amour", "Liebe", "amor", "amore"),
    "school": ("école", "Schule", "escuela", "scuola"), "car": ("voiture", "Auto", "coche", "macchina"),
    "good morning": ("bonjour", "guten Morgen", "buenos días", "buongiorno"),
}  # fmt: skip

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
          "November", "December")  # fmt: skip
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
SEASONS = ("winter", "winter", "spring", "spring", "spring", "summer", "summer", "summer", "autumn", "autumn", "autumn",
           "winter")  # fmt: skip
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
            "twelfth")  # fmt: skip

PLANETS = ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune")
PLANET_NOTES = {
    "Mercury": "the smallest planet and the closest one to the Sun", "Venus": "the hottest planet, wrapped in clouds",
    "Earth": "the planet we live on, with water and life", "Mars": "the red planet, cold and dusty",
    "Jupiter": "the largest planet, a giant ball of gas", "Saturn": "the planet with the bright rings",
    "Uranus": "a cold blue planet that lies on its side", "Neptune": "the planet farthest from the Sun",
}  # fmt: skip

SHAPES = {"triangle": 3, "square": 4, "rectangle": 4, "pentagon": 5, "hexagon": 6, "heptagon": 7, "octagon": 8,
          "nonagon": 9, "decagon": 10, "cube": 6}  # fmt: skip

SIZES = ("an ant", "a bee", "a mouse", "a frog", "a cat", "a dog", "a sheep", "a cow", "a horse", "an elephant",
         "a whale", "a house", "a mountain", "the Moon", "the Earth", "the Sun")  # fmt: skip

FOODS = {  # food: (kind, what it is made of or how it tastes)
    "apple": ("fruit", "sweet"), "banana": ("fruit", "sweet"), "lemon": ("fruit", "sour"), "cherry": ("fruit", "sweet"),
    "grape": ("fruit", "sweet"), "pear": ("fruit", "sweet"), "carrot": ("vegetable", "sweet"),
    "potato": ("vegetable", "mild"), "onion": ("vegetable", "sharp"), "cabbage": ("vegetable", "mild"),
    "spinach": ("vegetable", "mild"), "broccoli": ("vegetable", "mild"), "tea": ("drink", "bitter"),
    "coffee": ("drink", "bitter"), "honey": ("sweet food", "sweet"), "salt": ("spice", "salty"),
    "pepper": ("spice", "hot"), "sugar": ("sweet food", "sweet"), "juice": ("drink", "sweet"),
}  # fmt: skip
MADE_OF = {
    "bread": "flour, water, salt and yeast", "cheese": "milk", "butter": "cream", "wine": "grapes", "paper": "wood",
    "glass": "sand", "an omelette": "eggs", "chocolate": "cocoa beans", "pasta": "flour and eggs", "ice": "water",
    "a pancake": "flour, milk and eggs", "wool": "the hair of sheep", "ketchup": "tomatoes", "yogurt": "milk",
    "a pizza": "dough, tomato sauce and cheese", "a candle": "wax", "a book": "paper", "steel": "iron and carbon",
}  # fmt: skip

TRIVIA = {  # question: (answer, what must be in it)
    "How many days are in a week?": ("A week has 7 days.", "7"),
    "How many days are in a year?": ("A year has 365 days, and a leap year has 366.", "365"),
    "How many months are in a year?": ("A year has 12 months.", "12"),
    "How many hours are in a day?": ("A day has 24 hours.", "24"),
    "How many minutes are in an hour?": ("An hour has 60 minutes.", "60"),
    "How many seconds are in a minute?": ("A minute has 60 seconds.", "60"),
    "How many weeks are in a year?": ("A year has about 52 weeks.", "52"),
    "How many letters are in the alphabet?": ("The English alphabet has 26 letters.", "26"),
    "How many planets are there?": ("There are eight planets in the solar system.", "eight"),
    "How many seasons are there?": ("There are four seasons: spring, summer, autumn and winter.", "four"),
    "How many continents are there?": ("There are seven continents.", "seven"),
    "How many fingers does a hand have?": ("A hand has five fingers.", "five"),
    "How many colours are in a rainbow?": ("A rainbow has seven colours.", "seven"),
    "What are the colours of the rainbow?": ("Red, orange, yellow, green, blue, indigo and violet.", "indigo"),
    "What are the primary colours?": ("The primary colours are red, yellow and blue.", "yellow"),
    "What are the seasons?": ("The four seasons are spring, summer, autumn and winter.", "autumn"),
    "What is the largest ocean?": ("The Pacific is the largest ocean.", "Pacific"),
    "What is the highest mountain?": ("Mount Everest is the highest mountain.", "Everest"),
    "What is the longest river?": ("The Nile is often called the longest river.", "Nile"),
    "What is the largest animal?": ("The blue whale is the largest animal.", "blue whale"),
    "What is the fastest land animal?": ("The cheetah is the fastest land animal.", "cheetah"),
    "What is the tallest animal?": ("The giraffe is the tallest animal.", "giraffe"),
    "What is the king of the jungle?": ("The lion is called the king of the jungle.", "lion"),
    "What do bees make?": ("Bees make honey.", "honey"),
    "What do cows drink?": ("Cows drink water. They give milk.", "water"),
    "At what temperature does water boil?": ("Water boils at 100 degrees Celsius.", "100"),
    "At what temperature does water freeze?": ("Water freezes at 0 degrees Celsius.", "0"),
    "What is water made of?": ("Water is made of hydrogen and oxygen.", "oxygen"),
    "What is H2O?": ("H2O is water.", "water"),
    "What is the closest star to Earth?": ("The Sun is the closest star to Earth.", "Sun"),
    "What goes around the Earth?": ("The Moon goes around the Earth.", "Moon"),
    "Why is the sky blue?": ("Air scatters blue light more than red light, so the sky looks blue.", "scatters"),
    "Why do leaves fall in autumn?": ("Trees drop their leaves to save water in the cold.", "save water"),
    "What is rain?": ("Rain is water that falls from clouds in drops.", "clouds"),
    "What is snow?": ("Snow is frozen water that falls from clouds as flakes.", "frozen"),
    "What is the Sun?": ("The Sun is the star in the middle of our solar system.", "star"),
    "What is the Moon?": ("The Moon is a ball of rock that goes around the Earth.", "rock"),
    "What is a computer?": ("A computer is a machine that follows instructions and works with data.", "machine"),
    "What is a robot?": ("A robot is a machine that can move and do tasks by itself.", "machine"),
    "What is Python?": ("Python is a programming language that is easy to read. Weft is written in it.", "language"),
    "What is 1 dozen?": ("A dozen is 12.", "12"),
    "How many sides does a circle have?": ("A circle has no straight sides. It is round.", "round"),
}  # fmt: skip

FIRST_NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jonas", "Kate", "Leo", "Maria", "Noah",
    "Olga", "Paul", "Rosa", "Sam", "Tina", "Victor", "Wendy", "Yusuf", "Zoe", "Ada", "Alan", "Linus", "Mia", "Omar",
    "Priya", "Kenji", "Lucy", "Tom", "Sara", "Peter", "Nina", "Max", "Bob", "Alice", "Carol", "Erik", "John", "Jane",
    "Mary", "James", "Lena", "Ravi", "Mei", "Ali", "Fatima", "Diego", "Sofia", "Ivan", "Chen", "Amara", "Kofi",
)  # fmt: skip

WORDS = (
    "cat", "dog", "house", "tree", "water", "apple", "bread", "light", "stone", "river", "green", "cloud", "music",
    "paper", "table", "chair", "mouse", "horse", "train", "plane", "happy", "small", "seven", "night", "winter",
    "summer", "garden", "window", "orange", "yellow", "purple", "school", "banana", "monkey", "flower", "bridge",
    "castle", "thread", "weft", "token", "cache", "block", "queue", "batch", "model", "engine", "python", "friend",
    "sun", "moon", "star", "fish", "bird", "milk", "egg", "hat", "map", "king", "ring", "boat", "fire", "snow", "rain",
)  # fmt: skip
